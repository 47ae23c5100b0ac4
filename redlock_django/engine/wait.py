"""The wait of one call to acquire a lock: its attempts, its place in the queues, and its end."""

from __future__ import annotations

from typing import Protocol

from redlock_django.engine.attempt import SPLIT_ROUNDS, Attempt, Client, to_masters
from redlock_django.engine.errors import NotAcquired
from redlock_django.engine.pauses import clock_lag, retry_delays
from redlock_django.engine.protocol.commands import TOKEN, Acquire, AcquireSlot
from redlock_django.engine.quorum import Tally
from redlock_django.engine.refusal import refusal
from redlock_django.engine.slot_choice import SlotChoice
from redlock_django.engine.steps import Pause, Round
from redlock_django.engine.undo import undo_of
from redlock_django.engine.validity import RedlockLease

_NONE: frozenset[int] = frozenset()


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
    began at `asked`, and is over at `give_up`.

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
    ) -> None:
        self.client = client
        self.resources = resources
        self.ttl = ttl
        self.holder = holder
        self.waiter = waiter
        self.asked = asked
        self.give_up = give_up
        self.slots = slots
        if waiter is not None:
            self.name = waiter.name

    @property
    def limit(self) -> float:
        """The moment up to which the last attempt begins if votes are split."""
        return self.give_up + self.client.overrun

    def next_attempt(self, now: float) -> Attempt:
        """Begin the next attempt, and return it."""
        client = self.client
        proposal = next(client.proposals) + self.lag
        self.ticket = self.ticket or proposal
        token = next(client.tokens)
        common = f"{token} {self.holder}", self.ttl, proposal, self.name, self.ticket
        if self.slots is None:
            ask = Acquire(client.deployment, self.resources, *common)
        else:
            called = None if self.waiter is None else self.waiter.called_slot
            resources = self.slots.resource(token, called)
            ask = AcquireSlot(client.deployment, resources, *common, limit=self.slots.limit)
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

    def lease(self, attempt: Attempt, home: object) -> RedlockLease:
        """Return the lease of an attempt that has won the lock."""
        return RedlockLease(
            attempt.ask.resources, attempt.ask.value[:TOKEN], self.holder, self.ttl,
            attempt.started, attempt.until, attempt.fences,
            waited=self._waited(attempt),
            attempts=self.lost + 1,
            home=home,
            reached=self.queued or attempt.tally.reached,
            tally=attempt.tally,
            waiter=self.name,
            limit=1 if self.slots is None else self.slots.limit,
        )  # fmt: skip

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

    def refusal(self, now: float) -> NotAcquired:
        """Return the error for a call whose last attempt was lost."""
        attempt = self.attempt
        assert attempt is not None
        error = refusal(
            self.client.deployment, self.resources, attempt.last, attempt.late,
            1 if self.slots is None else self.slots.limit,
        )  # fmt: skip
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
