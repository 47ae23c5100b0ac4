"""The trust in a master: what it reported when it was joined, and why it is not counted.

Nothing here connects: the core decides by these values, the handshake reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from redlock_django.engine.membership import NEW, Membership
from redlock_django.engine.protocol.commands import Reply
from redlock_django.engine.protocol.statuses import Status
from redlock_django.engine.protocol.trust_marker import Marker, read_marker
from redlock_django.wire.servers.info import faults

if TYPE_CHECKING:
    import socket

EMPTIED, WAITS = "new or emptied", "waits to be trusted"
"""Why a master is not trusted yet; NEW is reported instead while none of the alias is trusted."""


class Unfit(Exception):
    """A master cannot be used; the message gives the reason and contains no secret."""


class NotUpYet(Unfit):
    """A master does not answer, or is still loading its data: it may be usable soon."""


class Unmarked(Unfit):
    """A master has no marker, and this client may not write one yet.

    `early` means that the other masters may still answer within the time of one connection.
    """

    early = False


@dataclass(frozen=True, slots=True)
class Trust:
    """The trust of a master, as its marker states it.

    `marker` is the marker itself. `ready` and the bounds of `offset` are in seconds of our clock;
    `ready_at` is in µs of the master's. `doubt` is the reason why the master may have forgotten
    locks ("" if it is known). `offset` bounds the master's clock minus ours.
    """

    marker: bytes
    ready_at: int
    ready: float
    doubt: str
    offset: tuple[float, float]

    def why(self, now: float) -> str:
        """Return why the master is not counted at `now`, in seconds of our clock; "" if it is."""
        if now >= self.ready:
            return ""
        when = f"trusted in {max(self.ready - now, 1):.0f} s"
        if self.doubt == NEW:
            return f"{NEW} (if it was emptied: {when})"
        hint = ""
        if self.doubt in (EMPTIED, WAITS):
            hint = " (if it is new: run 'manage.py redlock_init')"
        return f"{self.doubt}: {when}{hint}"


@dataclass(frozen=True, slots=True)
class Joined:
    """A usable master: its socket, which still blocks, and what it reported.

    INFO was asked for at `inspected`, in seconds of our clock. With `pushes`, the connection uses
    RESP3, so the master can call waiters on it.
    """

    socket: socket.socket
    run_id: str
    trust: Trust
    warnings: tuple[str, ...]
    inspected: float
    pushes: bool = False


def read_trust(
    membership: Membership, name: str, run_id: str, reply: Reply, sent: float, read: float
) -> Trust:
    """Read a reply of join.lua that was asked for at `sent` and received at `read`.

    What the marker of this master, which has this name and run_id, says is noted in `membership`.
    Raises Unfit, and Unmarked if it has none.
    """
    _, status, time, marker = reply
    known = read_marker(marker)
    bound = known is not None and known.run_id == run_id
    membership.saw(name, run_id, known.deployment if known else "", read, bound=bound)
    if known is None:
        raise Unmarked(membership.why_unmarked(read))
    if status == Status.MISMATCH:
        raise Unfit(membership.why_foreign(known.deployment))
    doubt = {
        Status.KNOWN: WAITS,
        Status.MARKED: WAITS,
        Status.FRESH: EMPTIED if read >= membership.trusted_from else NEW,
        Status.RESTARTED: "restarted",
        Status.STEPPED: "its clock stepped",
    }[Status(status)]
    offset = (time / 1_000_000 - read, time / 1_000_000 - sent)
    ready = read + (known.ready_at - time) / 1_000_000
    membership.trusted_from = min(membership.trusted_from, ready)
    return Trust(marker, known.ready_at, ready, doubt, offset)


def ready_in(marker: Marker | None, run_id: str, time: int) -> float | None:
    """Return the seconds, at a `time` in µs, until a marker is trusted; None if not of this run."""
    if marker is None or marker.run_id != run_id:
        return None
    return max(0, marker.ready_at - time) / 1_000_000


def check(info: dict[str, str], tolerate: frozenset[str]) -> tuple[str, ...]:
    """Return the messages of tolerated faults; raises Unfit for a fault that is not tolerated."""
    warnings = []
    for one in faults(info):
        if one.code not in tolerate:
            raise (NotUpYet if one.code == "loading" else Unfit)(str(one))
        warnings.append(str(one))
    return tuple(warnings)
