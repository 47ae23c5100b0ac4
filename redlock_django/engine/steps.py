"""The steps of a protocol: what the rounds of acquire, extend and release ask of their driver.

A protocol is a generator. It yields a `Round` (send these commands, count the answers in this
tally) or a `Pause`, and is sent the clock when that is done. A driver does three things: it carries
a round until its tally is decided, it sleeps, and it throws an interrupt (a cancellation, Ctrl-C)
*into* the generator, which undoes what it began and raises the interrupt again. `GeneratorExit`
alone means that the driver is gone: then nothing can be undone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from hashlib import sha1
from typing import NamedTuple, TypeVar

from redlock_django.engine.protocol.commands import Command
from redlock_django.engine.quorum import Tally


@dataclass(slots=True, eq=False)
class Round:
    """Send `commands[i]` to master i (None: nothing), and count the answers in `tally`.

    A round that is not `awaited` is sent without waiting for its answers. Once it is sent, the
    locks of `frees` are free, unless they were lost before. A round that is `patient` waits for
    late answers up to that moment, as long as no quorum has answered. A round that `spares` masters
    does not ask masters that owe many replies, as long as a quorum can be asked without them.
    """

    commands: tuple[Command | None, ...]
    tally: Tally
    patient: float = 0.0
    awaited: bool = True
    frees: tuple[str, ...] = ()
    spares: bool = False

    def waits_on(self, now: float) -> bool:
        """Return whether an answer that is late is still waited for."""
        return now < self.patient and not self.tally.account.answered


class Offer(NamedTuple):
    """The offer of a waiter: a release may set the lock for it on the masters that refused it.

    `attempt` has the votes of the masters on which that was done. `refused` is the tally of the
    round that was refused; that round was sent at `sent`, and asked for the lock with `token`.
    """

    attempt: Round
    refused: Tally
    token: str
    sent: float

    def is_from(self, master: int, marker: bytes, proof: bytes) -> bool:
        """Return whether the `proof` of a grant is of this offer, and of a master with this marker.

        Only a master that has queued the waiter can have granted it.
        """
        # A master whose refusal was lost may be sent an undo, so its grant does not count.
        vote = self.refused.votes[master]
        is_queued = vote is not None and vote.ahead >= 0
        return is_queued and proof == proof_of_grant(self.token.encode(), marker)


def proof_of_grant(token: bytes, marker: bytes) -> bytes:
    """Return what a master with this marker publishes to prove that it has set this token."""
    return sha1(token + marker, usedforsecurity=False).hexdigest().encode()


class Pause(NamedTuple):
    """Sleep that many seconds, or until the waiter of this protocol is called.

    The pause ends when a majority of masters has called the waiter since its last round began. If a
    call may be missed (a link was lost, is new, or cannot bring calls), the pause lasts at most
    `unheard` seconds. A majority has it in the queue of `resource` ("" for none) with this
    `ticket`, and with `ahead` waiters in front.

    The driver may call `begin` with the clock to get the rounds that follow, and send them in this
    order while the caller still sleeps. Only the last one is awaited. The driver does not send that
    again when the protocol yields it. Nor does it send the attempt of the `offer`: the pause ends
    once enough masters have granted that.
    """

    seconds: float
    unheard: float = math.inf
    resource: str = ""
    ahead: int = 0
    ticket: int = 0
    begin: Callable[[float], tuple[Round, ...]] | None = None
    offer: Offer | None = None


Step = Round | Pause
Result = TypeVar("Result")
Protocol = Generator[Step, float, Result]
