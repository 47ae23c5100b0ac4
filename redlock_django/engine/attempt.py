"""Attempts to acquire a lock, how they are undone, and the wait of a call over its attempts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from redlock_django.engine.errors import LockLost, NotAcquired, TicketUsed
from redlock_django.engine.fencing import highest, stored_by_majority
from redlock_django.engine.pauses import clock_lag, retry_delays
from redlock_django.engine.protocol.commands import TOKEN, Acquire, Command, Confirm, Take
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.quorum import WON, Tally
from redlock_django.engine.refusal import refusal, refusal_of_ticket
from redlock_django.engine.slot_choice import ReleasedSlots, SlotChoice
from redlock_django.engine.steps import Pause, Round
from redlock_django.engine.undo import leaves_late_grants, undo_of
from redlock_django.engine.validity import Lease, RedlockLease, end_of_min_hold, valid_until

SPLIT_ROUNDS = 8  # split votes after which a client that does not wait gives up
NEAR = 0.002  # seconds of a round among near masters, for which the random delays are made
LONGEST_PAUSE = 2.0  # seconds that a client with a ticket pauses at most
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
        answered, see `leaves_late_grants`. Where an expected token was replaced, it is restored,
        unless another client is proved to hold the lock: then it would only be in the way.
        """
        ask, tally = self.ask, self.tally
        # If so, the links release from here on what a silent master grants.
        is_left = leaves_late_grants(ask, tally)
        reached = queued | (tally.unsure if is_left else tally.reached)
        if is_left and not leave:
            self.left = tally.reached - reached
        if not reached:
            return None
        if isinstance(ask, Take) and not tally.rival_won:
            release: Command = ask.restore()
        else:
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


class WaitingCaller(Protocol):
    """A caller that waits for a lock, as its driver knows it: `name` is what masters call."""

    name: str
    called_slot: int | None
    """The slot that masters named when they called it; None if none did since its last round."""


class Wait:
    """The wait of one call: its attempts, until when they go on, and its place in the queues.

    A waiter joins a queue on every master that refuses it. Its ticket is its first proposal; if its
    clock is wrong, the ticket is what a majority's clocks showed at that time. Masters call it by
    its name when its turn comes. Waiters are served in order: while a waiter that can be called is
    in the queue, a free lock is granted neither to a later waiter nor to a client that does not
    wait. A waiter that was called has 0.1 s to ask before its turn is over. Several resources
    are waited for one at a time, in the queue of the first that is refused, and none is held
    meanwhile. All clients should name them in the same order: two clients that do not would each
    be called for a lock that is reserved for the other.

    The arguments are those of `rounds.acquire`; without a `waiter`, no queue is joined. The wait
    began at `asked`, and is over at `give_up`. A client with an `expected` lease does not wait; but
    if votes are split, one with a ticket makes as many attempts as it may, however far the masters
    are. A giver has no rival to wait for, and its lease is not extended meanwhile.

    Attributes that most calls never set are in the class.
    """

    # The place in the queues.
    name = ""
    """The name by which masters call the waiter; "" if it joins no queue."""
    ticket = 0
    lag = 0  # µs by which the client's clock is known to be behind
    queued = _NONE  # the masters that may have the waiter in a queue

    # The attempts.
    lost = 0
    splits = 0  # those of the lost ones with split votes
    attempt: Attempt | None = None  # the last one
    resting = False  # no master has a lock or a ticket of the call
    paused = False  # the call has waited; to ask for another slot at once is no wait

    def __init__(
        self,
        client: Client,
        resources: tuple[str, ...],
        ttl: float,
        holder: str,
        waiter: WaitingCaller | None,
        asked: float,
        give_up: float,
        slots: SlotChoice | None = None,  # of a name that several clients may hold at once
        expected: Lease | None = None,  # the lock must have its token, instead of being absent
    ) -> None:
        self.client = client
        self.resources = resources
        self.ttl = ttl
        self.holder = holder
        self.waiter = waiter
        self.asked = asked
        self.give_up = give_up
        self.slots = slots
        self.expected = expected
        if waiter is not None:
            self.name = waiter.name

    @property
    def limit(self) -> float:
        """The moment up to which the last attempt begins if votes are split."""
        if self.expected is None or self.expected.home is not None:
            return self.give_up + self.client.overrun
        return math.inf

    def next_attempt(self, now: float) -> Attempt:
        """Begin the next attempt, and return it."""
        client = self.client
        proposal = next(client.proposals) + self.lag
        self.ticket = self.ticket or proposal
        token = next(client.tokens)
        value = f"{token} {self.holder}"
        resources, limit, expected = self.resources, 1, self.expected
        if self.slots is not None:
            called = None if self.waiter is None else self.waiter.called_slot
            resources, limit = self.slots.resource(token, called), self.slots.limit
        if expected is None:
            ask = Acquire(
                client.deployment, resources, value, self.ttl, proposal, self.name, self.ticket,
                limit=limit,
            )  # fmt: skip
        else:
            ask = Take(
                client.deployment, expected.resources, value, self.ttl, proposal,
                limit=expected.limit, expected=expected.token, fences=expected.fences,
            )  # fmt: skip
        self.attempt = attempt = Attempt(ask, now, self.give_up)
        self.resting = False
        return attempt

    def undo_silent(self) -> Round | None:
        """Return the undo that precedes the next attempt; None if none is needed.

        It is for masters whose late grants were left to the links, and that are silent until now:
        such a grant would be in the way of the next attempt.
        """
        last = self.attempt
        if last is None or not last.left:
            return None
        silent, masters = last.left & last.tally.reached, last.tally.masters
        if not silent:
            return None
        undo = to_masters(undo_of(last.ask, leave=False, calls=False), silent, masters)
        return Round(undo, Tally(masters), awaited=False)

    def note(self, attempt: Attempt) -> None:
        """Note which masters may have the waiter in a queue."""
        if self.name:
            self.queued |= attempt.tally.asked

    def lease(self, attempt: Attempt, home: object, now: float) -> RedlockLease:
        """Return the lease of an attempt that has won the lock."""
        lease = RedlockLease(
            attempt.ask.resources, attempt.ask.value[:TOKEN], self.holder, self.ttl,
            attempt.started, attempt.until, attempt.fences,
            waited=self._waited(attempt),
            attempts=self.lost + 1,
            home=home,
            granted=attempt.tally.granted,
            reached=self.queued or attempt.tally.reached,
            waiter=self.name,
            limit=attempt.ask.limit,
        )  # fmt: skip
        if (expected := self.expected) is not None:
            left = max(vote.ttl or 0 for vote in attempt.tally.counted()) / 1000
            lease.earliest_end = end_of_min_hold(expected, left, now)
            lease.givers = expected.givers
            lease.tally = attempt.tally
        return lease

    def undo(self, attempt: Attempt, *, again: bool) -> Round | None:
        """Return the round that releases what a lost attempt may have set; None if that is nothing.

        It also leaves the queues, unless `again` is set.
        """
        return attempt.undo(_NONE if again else self.queued, leave=not again)

    def undo_interrupted(self) -> Round | None:
        """Return the round that undoes the attempt that was interrupted, and leaves the queues.

        The release is sent again if the interrupt struck during the undo itself, perhaps before a
        byte was sent.
        """
        attempt = self.attempt
        if attempt is None or self.resting:
            return None
        if self.name:
            self.queued |= attempt.tally.asked
        return attempt.undo(self.queued, leave=True)

    def refusal(self, now: float) -> NotAcquired | LockLost | TicketUsed:
        """Return the error for a call whose last attempt was lost."""
        attempt, deployment = self.attempt, self.client.deployment
        assert attempt is not None
        last, late = attempt.last, attempt.late
        if self.expected is not None:
            return refusal_of_ticket(deployment, self.expected, last, late)
        error = refusal(deployment, self.resources, last, late, attempt.ask.limit)
        error.waited, error.took = self._waited(attempt), now - self.asked
        error.attempts = self.lost
        return error

    def _waited(self, attempt: Attempt) -> float:
        return attempt.started - self.asked if self.paused else 0.0

    def goes_on(self, attempt: Attempt, now: float) -> bool:
        """Return whether to ask again after an attempt that was lost; see `Attempt.split`.

        Once the wait is over, attempts for other slots are bounded by their number: whoever finds
        a slot taken has not found all of them taken, however late that answer is.
        """
        if self.slots is not None:
            self.slots.note(attempt.tally, throughout=now >= self.give_up)
        self.lost += 1
        may_win = self._may_take_another(attempt)
        if not may_win and attempt.split:
            self.splits += 1
            may_win = self.splits < SPLIT_ROUNDS
        return now < self.give_up or (may_win and (now < self.limit or not attempt.split))

    def _may_take_another(self, attempt: Attempt) -> bool:
        """Return whether a slot may be free after an attempt that was lost."""
        return self.slots is not None and self.slots.is_open and not attempt.unreachable

    def pause(self, attempt: Attempt, now: float) -> Pause:
        """Return the pause after an attempt that was lost; see `retry_delays`.

        If the attempt shows that this client's clock is wrong, the ticket becomes what a majority's
        clocks showed when the wait began.
        """
        self.resting = not self.name  # what the attempt may have set has been released
        ask, started = attempt.ask, attempt.started
        if lag := clock_lag(attempt.tally, ask.proposal, now - started):
            self.lag += lag
            self.ticket = ask.proposal + lag - round((started - self.asked) * 1_000_000)
        delay = unheard = self.client.delay(self.lost)
        if self.expected is not None:
            # Clients that are far from each other undo what they have set as far apart.
            delay = unheard = min(delay * max(1.0, (now - started) / NEAR), LONGEST_PAUSE)
        queueing = bool(ask.waiter) and not attempt.unreachable
        # After a split vote, a waiter that has no grant and is queued by a majority does not ask
        # again at once: it will be called. If all asked together, the next vote would be split too.
        if self._may_take_another(attempt):
            delay = unheard = delay if attempt.split else 0.0
        elif not attempt.split or (queueing and attempt.queued):
            delay, unheard = retry_delays(attempt.last, delay, queueing=queueing)
        end = self.give_up if now < self.give_up else self.limit
        seconds = max(0.0, min(delay, end - now))
        self.paused = self.paused or delay > 0.0
        return Pause(seconds, unheard)
