"""One attempt to acquire a lock: its rounds, what came of them, and how it is undone."""

from __future__ import annotations

from redlock_django.engine.commands import Acquire, Command, Confirm, Release
from redlock_django.engine.fast_path import new_tally
from redlock_django.engine.fencing import highest, stored_by_majority
from redlock_django.engine.protocol_steps import Protocol, Round
from redlock_django.engine.quorum import Verdict
from redlock_django.engine.validity import valid_until


class Attempt:
    """One attempt to acquire the lock of `ask`, which began at `started`.

    `tally` has the votes on the lock, `last` those of the attempt's last round. `late` is whether
    the masters answered too slowly for the lock's TTL. An attempt that has `won` holds the lock
    until the moment `until`, with these `fences`.
    """

    __slots__ = ("ask", "fences", "last", "late", "started", "tally", "until", "won")

    def __init__(self, ask: Acquire, started: float) -> None:
        deployment = ask.deployment
        self.ask = ask
        self.started = started
        self.tally = self.last = new_tally(deployment.masters, skew=deployment.skew, rivals=True)
        self.late = self.won = False
        self.until = 0.0
        self.fences: tuple[int, ...] = ()

    def run(self) -> Protocol[float]:
        """Ask every master for the lock; return the clock after the last round."""
        ask, tally = self.ask, self.tally
        now = yield Round((ask,) * tally.masters, tally)
        if tally.verdict is not Verdict.WON:
            return now
        self.fences = tally.unanimous or highest(tally, len(ask.resources))
        if not (tally.unanimous or stored_by_majority(tally, self.fences)):
            confirm = Confirm(
                deployment=ask.deployment, resources=ask.resources, value=ask.value,
                fences=self.fences,
            )  # fmt: skip
            self.last = new_tally(tally.masters, skew=tally.skew)
            now = yield Round((confirm,) * tally.masters, self.last)
        self.until = valid_until(ask.ttl, self.started)
        self.late = now >= self.until
        self.won = self.last.verdict is Verdict.WON and not self.late
        return now

    @property
    def unreachable(self) -> bool:
        """True if too few masters answered, or too slowly."""
        return self.late or self.last.unreachable

    @property
    def split(self) -> bool:
        """True if no client is proved to hold the lock: a split vote, or a race with a release.

        Asking again at once is right even for a client that does not wait; otherwise all of them
        may lose. The same if connections had been closed while idle, as routers do: the next
        attempt has new ones.
        """
        return self.last.only_stale or not (self.unreachable or self.last.rival_won)

    def undo(self, queued: frozenset[int], *, leave: bool) -> Round:
        """Return the round that releases the lock wherever it may be.

        It goes to the masters in `queued` too, which may have the waiter in a queue. With `leave`,
        the waiter leaves the queues, and the next waiter is called.
        """
        ask, tally = self.ask, self.tally
        release = Release(
            deployment=ask.deployment, resources=ask.resources, value=ask.value,
            waiter=ask.waiter if leave else "", calls=leave,
        )  # fmt: skip
        commands = to_masters(release, tally.reached | queued, tally.masters)
        return Round(commands, new_tally(tally.masters), awaited=False)


def to_masters(
    command: Command, reached: frozenset[int], masters: int
) -> tuple[Command | None, ...]:
    """Return the commands of a round that sends `command` to the masters in `reached`."""
    if len(reached) == masters:
        return (command,) * masters
    return tuple(command if master in reached else None for master in range(masters))
