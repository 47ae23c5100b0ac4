"""One attempt to acquire a lock: its rounds, what came of them, and how it is undone."""

from __future__ import annotations

from redlock_django.engine.fencing import highest, stored_by_majority
from redlock_django.engine.protocol.commands import Acquire, Command, Confirm, Release
from redlock_django.engine.protocol.votes import Ballot
from redlock_django.engine.quorum import WON, Tally
from redlock_django.engine.steps import Protocol, Round
from redlock_django.engine.validity import valid_until


class Attempt(Round):
    """One attempt to acquire the lock of `ask`, which began at `started`.

    It is also its first round, which asks every master for the lock. All its rounds are patient up
    to the same moment. To ask again instead would not help: a master answers in order. Many waiters
    that did so have kept a busy host from answering any of them in time.
    `tally` has the votes on the lock, `last` those of the attempt's last round. `late` is whether
    the masters answered too slowly for the lock's TTL. An attempt that has `won` holds the lock
    until the moment `until`, with these `fences`.
    """

    fences: tuple[int, ...]
    __slots__ = ("ask", "fences", "last", "late", "started", "until", "won")

    def __init__(
        self, ask: Acquire, started: float, patient: float = 0.0, spares: bool = False
    ) -> None:
        masters = ask.deployment.masters
        # As in `Round`, and by positional arguments: an attempt takes twice as long otherwise.
        self.commands = (ask,) * masters
        self.tally = self.last = Tally(masters, ask.deployment.skew, True)
        self.patient = patient
        self.awaited, self.frees, self.spares = True, (), spares
        self.ask = ask
        self.started = started
        self.late = self.won = False
        self.until = 0.0

    def wins_plainly(self, now: float) -> bool:
        """Return whether plain grants have decided the first round, which ended at `now`.

        Nearly every attempt ends here. `judge` comes to the same result, by way of the votes.
        """
        fences = self.tally.unanimous
        if fences is None:
            return False
        self.fences = fences
        self._end(now)
        return True

    def judge(self, now: float) -> Protocol[float]:
        """Judge the first round, which ended at `now`; return the clock after the last round.

        If no majority has stored the highest fence, another round does that.
        """
        ask, tally = self.ask, self.tally
        if tally.verdict is not WON:
            return now
        self.fences = highest(tally.account, len(ask.resources))
        if not stored_by_majority(tally.account, self.fences):
            confirm = Confirm(ask.deployment, ask.resources, ask.value, self.fences)
            self.last = Tally(tally.masters, tally.skew)
            now = yield Round((confirm,) * tally.masters, self.last, self.patient)
        self._end(now)
        return now

    def _end(self, now: float) -> None:
        self.until = valid_until(self.ask.ttl, self.started)
        self.late = now >= self.until
        self.won = self.last.verdict is WON and not self.late

    @property
    def unreachable(self) -> bool:
        """True if too few masters answered, or too slowly."""
        return self.late or self.last.account.unreachable

    @property
    def split(self) -> bool:
        """True if no client is proved to hold the lock: a split vote, or a race with a release.

        Asking again at once is right even for a client that does not wait; otherwise all of them
        may lose. The same holds if idle connections had been closed, as routers do, or masters were
        spared: the next attempt has new connections, and asks all masters.
        """
        account = self.last.account
        return account.only_stale or not (self.unreachable or account.rival_won)

    @property
    def queued(self) -> bool:
        """True if a majority of masters has the waiter in its queue, and none granted the lock.

        If the other votes are split, the waiters that have them ask again at once, or release them.
        """
        account = self.last.account
        return account.majority(len(account.queueing)) and not account.count(Ballot.GRANTED)

    def undo(self, now: float, queued: frozenset[int], *, leave: bool) -> Protocol[float]:
        """Release the lock wherever it may be; return the clock afterwards.

        This goes to the masters in `queued` too, which may have the waiter in a queue. With
        `leave`, the waiter leaves the queues. Then the next waiter is called, and also if no quorum
        has answered in time: all may have granted the lock. Nothing is sent if every master has
        refused, or may be left to the links; see `leaves_late_grants`.
        """
        ask, tally = self.ask, self.tally
        # Before `silent` is read: from here on, the links release what a silent master grants.
        is_left = leaves_late_grants(ask, tally)
        reached = tally.reached | queued
        if is_left:
            reached -= tally.account.silent
        if reached:
            release = undo_of(ask, leave=leave, calls=leave or self.unreachable)
            commands = to_masters(release, reached, tally.masters)
            now = yield Round(commands, Tally(tally.masters), awaited=False)
        return now


def leaves_late_grants(ask: Command | None, tally: Tally) -> bool:
    """Return whether the links release what a master grants after this round was lost.

    They do so for a client that does not wait, once another one is proved to hold the lock. The
    masters that have not answered by then nearly always refuse as well, so no undo is sent to
    them. A waiter asks again, perhaps before its late grant would be released.
    """
    return isinstance(ask, Acquire) and not ask.waiter and tally.account.rival_won


def undo_of(ask: Acquire, *, leave: bool, calls: bool = True) -> Release:
    """Return the command that releases what `ask` may have set."""
    waiter = ask.waiter if leave else ""
    return Release(ask.deployment, ask.resources, ask.value, waiter=waiter, calls=calls)


def to_masters(
    command: Command, reached: frozenset[int], masters: int
) -> tuple[Command | None, ...]:
    """Return the commands of a round that sends `command` to the masters in `reached`."""
    if len(reached) == masters:
        return (command,) * masters
    return tuple(command if master in reached else None for master in range(masters))
