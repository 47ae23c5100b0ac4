"""An attempt to acquire a lock: its rounds, its result, and how it is undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from redlock_django.engine.fencing import highest, stored_by_majority
from redlock_django.engine.protocol.commands import (
    Acquire,
    Command,
    Confirm,
)
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.quorum import WON, Tally
from redlock_django.engine.slot_choice import ReleasedSlots
from redlock_django.engine.steps import Round
from redlock_django.engine.undo import leaves_late_grants, undo_of
from redlock_django.engine.validity import valid_until

SPLIT_ROUNDS = 8  # split votes after which a client that does not wait gives up
_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Client:
    """A client of a deployment, and the sources of what its rounds need.

    `tokens` yields a new token for every round: with one token for all rounds, a late undo of the
    first round would delete the lock that the second round won. `proposals` yields the wall clock
    in µs. `delay` returns the random seconds to pause after so many attempts. Split votes are asked
    again for at most `overrun` seconds once a wait is over.
    """

    deployment: Deployment
    tokens: Iterator[str]
    proposals: Iterator[int]
    delay: Callable[[int], float]
    overrun: float
    released: ReleasedSlots = field(default_factory=ReleasedSlots)


class Attempt(Round):
    """One attempt to acquire the lock of `ask`, which began at `started`.

    It is also its first round, which asks every master for the lock. All its rounds wait for late
    answers up to the moment `patient`. To ask again earlier does not help, because a master answers
    in order; on a busy host, the repeated commands of many waiters delayed every answer.
    `tally` has the votes on the lock, `last` those of the attempt's last round. `late` is whether
    the masters answered too slowly for the lock's TTL. An attempt that has `won` holds the lock
    until the moment `until`, with these `fences`.
    """

    fences: tuple[int, ...]
    __slots__ = ("ask", "fences", "last", "late", "left", "started", "until", "won")

    def __init__(self, ask: Acquire, started: float, patient: float = 0.0) -> None:
        masters = ask.deployment.masters
        # As in `Round`, and by positional arguments: an attempt takes twice as long otherwise.
        self.commands = (ask,) * masters
        self.tally = self.last = Tally(masters, ask.deployment.skew, True)
        self.patient = patient
        self.awaited = True
        self.ask = ask
        self.started = started
        self.late = self.won = False
        self.left = _NONE  # the masters whose late grants `undo` has left to the links
        self.until = 0.0

    def judge(self, now: float) -> Round | None:
        """Judge the first round, which ended at `now`.

        If no majority has stored the highest fence, return the round that does so, which is the
        last one; None if none is needed.
        """
        ask, tally = self.ask, self.tally
        if tally.verdict is not WON:
            return None
        if (fences := tally.unanimous) is None:
            fences = highest(tally, len(ask.resources))
            if not stored_by_majority(tally, fences):
                self.fences = fences
                confirm = Confirm(ask.deployment, ask.resources, ask.value, fences)
                self.last = Tally(tally.masters, tally.skew)
                return Round((confirm,) * tally.masters, self.last, self.patient)
        self.fences = fences
        self.end(now)
        return None

    def end(self, now: float) -> None:
        """Note whether the lock is won, now that the last round has ended."""
        self.until = valid_until(self.ask.ttl, self.started)
        self.late = now >= self.until
        self.won = self.last.verdict is WON and not self.late

    @property
    def unreachable(self) -> bool:
        """True if too few masters answered, or too slowly."""
        return self.late or self.last.unreachable

    @property
    def split(self) -> bool:
        """True if no client is proved to hold the lock: a split vote, or a race with a release.

        Asking again at once is right even for a client that does not wait; otherwise all of them
        may lose. The same holds if idle connections had been closed, as routers do: the next
        attempt has new connections.
        """
        last = self.last
        if last.unreachable:
            return last.only_stale
        return not (self.late or last.rival_won)

    @property
    def queued(self) -> bool:
        """True if a majority of masters has the waiter in its queue, and none granted the lock.

        If the other votes are split, the waiters that have them ask again at once, or release them.
        """
        last = self.last
        return last.majority(len(last.queueing)) and not last.granted

    def undo(self, queued: frozenset[int], *, leave: bool) -> Round | None:
        """Return the round that releases the lock wherever it may be; None if it is nowhere.

        With `leave`, the waiter leaves the queues of the masters in `queued`, and the release calls
        the next waiter. It also calls if no quorum answered in time, because all may have granted.
        A master that refused is sent a release only if it is in `queued`. For masters that have not
        answered, see `leaves_late_grants`.
        """
        ask, tally = self.ask, self.tally
        # If so, the links release from here on what a silent master grants.
        is_left = leaves_late_grants(ask, tally)
        reached = queued | (tally.unsure if is_left else tally.reached)
        if is_left and not leave:
            self.left = tally.reached - reached
        if not reached:
            return None
        release = undo_of(ask, leave=leave, calls=leave or self.unreachable)
        commands = to_masters(release, reached, tally.masters)
        return Round(commands, Tally(tally.masters), awaited=False)


def to_masters(
    command: Command, reached: frozenset[int], masters: int
) -> tuple[Command | None, ...]:
    """Return the commands of a round that sends `command` to the masters in `reached`."""
    if len(reached) == masters:
        return (command,) * masters
    return tuple(command if master in reached else None for master in range(masters))
