"""The replies of scripts, written and read as numbers and text, and the votes that they are."""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack, unpack
from typing import Any

from redlock_django.engine.protocol.commands import Reply
from redlock_django.engine.protocol.statuses import Status
from redlock_django.engine.protocol.votes import Ballot, Vote
from redlock_django.engine.quorum import Tally


def packed(parts: Iterable[int | bytes]) -> bytes:
    """Return the reply that has these parts: the round, the status, the time, and what follows."""
    numbers, text = [], b""
    for part in parts:
        if isinstance(part, bytes):
            text += part
        else:
            numbers.append(part)
    return pack(f"<{len(numbers)}q", *numbers) + text


def unpacked(reply: Reply) -> list[Any]:
    """Return the status of a reply, its time, and the numbers and the text that follow."""
    _, status, time, rest = reply
    refuses = status in (Status.REFUSED, Status.RESERVED)
    many = 4 if refuses else len(rest) // 8 if status in (Status.GRANTED, Status.ABSENT) else 0
    text = [rest[8 * many :]] if refuses or rest[8 * many :] else []
    return [status, time, *unpack(f"<{many}q", rest[: 8 * many]), *text]


def refused(time: int, ttl: int, fence: int, rival: bytes, **more: Any) -> Vote:
    """Return a vote that refuses: another client has the lock, or it is a waiter's turn."""
    return Vote(Ballot.REFUSED, "", time, (fence,), ttl, rival, **more)


def tally_of(*votes: Vote | None, **how: Any) -> Tally:
    """Return the tally of a round with these votes, by master; None has not answered yet."""
    tally = Tally(len(votes), **how)
    for master, vote in enumerate(votes):
        if vote is not None:
            tally.cast(master, vote)
    return tally
