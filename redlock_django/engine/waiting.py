"""How long a call asks for its lock, its pauses between attempts, and its place in the queues."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from redlock_django.engine.attempt import Attempt
from redlock_django.engine.errors import NotAcquired
from redlock_django.engine.protocol.commands import Acquire
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.quorum import Account
from redlock_django.engine.refusal import WaitingCaller, free_in, refusal
from redlock_django.engine.steps import Pause, Protocol
from redlock_django.engine.validity import RedlockLease

SPLIT_ROUNDS = 8  # split votes after which a client that does not wait gives up

# How soon a waiter that may miss its call asks again, in seconds. The pause grows to LONGEST with
# the number of waiters in front, so that many waiters ask hardly more often than a few.
FALLBACK, LONGEST = 0.1, 2.0
# The same for a waiter that will be called; its jitter adds up to CALM. Before the waiter is the
# last one, a call to another waiter asks it to watch (`ask_to_watch` in queue.lua).
CALM, CALM_LONGEST = 1.0, 10.0
CROWD = 400  # waiters in front that prolong a pause by half the way to the longest one
TURN = 100  # ms of a waiter's turn; as in queue.lua
NEAR = 8  # with more waiters in front, a waiter hardly watches a turn that another one watches
_NONE: frozenset[int] = frozenset()
LAST_MOMENT = 0.1  # seconds at the end of a wait in which a waiter does not begin to ask
UNREACHABLE = 20  # how many times longer a pause is without a quorum: up to 2 s


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


class Wait:
    """The wait of one call: its attempts, until when they go on, and its place in the queues.

    A waiter joins a queue on every master that refuses it. Its ticket is its first proposal; if its
    clock is wrong, the ticket is what a majority's clocks showed at that time. Masters call it by
    its name when its turn comes. Waiters are served in order: a free lock is granted to no client
    while an earlier waiter that can be called is in the queue, and so never to a client that does
    not wait. A waiter that was called has 0.1 s to ask before its turn is over. Several resources
    are waited for one at a time, in the queue of the first that is refused, and none is held
    meanwhile. All clients should name them in the same order: two clients that do not would each
    be called for a lock that is reserved for the other.

    The arguments are those of `rounds.acquire`; without a `waiter`, no queue is joined. The wait
    began at `asked`, and is over at `give_up`. `lost` counts the attempts that were lost, `splits`
    those of them with split votes. `ticket` is the waiter's place, 0 before its first attempt, and
    `lag` by how many µs its clock is known to be behind. `queued` has the masters that may have the
    waiter in a queue. `attempt` is the last attempt. `begun` is the one that follows, if it has
    begun in the pause before it. While the call is `resting`, no master has a lock or a ticket of
    it.
    """

    __slots__ = (
        "_crowd", "_name", "_waiter", "asked", "attempt", "begun", "client", "give_up", "holder",
        "lag", "lost", "queued", "resources", "resting", "splits", "ticket", "ttl",
    )  # fmt: skip

    def __init__(
        self,
        client: Client,
        resources: tuple[str, ...],
        ttl: float,
        holder: str,
        waiter: WaitingCaller | None,
        asked: float,
        wait: float,
    ) -> None:
        self.client = client
        self.resources = resources
        self.ttl = ttl
        self.holder = holder
        self.asked = asked
        self.give_up = asked + wait
        self.lost = self.splits = self.ticket = self.lag = 0
        self.queued = _NONE
        self.attempt: Attempt | None = None
        self.begun: Attempt | None = None
        self.resting = False
        self._waiter = waiter
        self._name, self._crowd = "", None
        if waiter is not None:
            self._name, self._crowd = waiter.name, waiter.crowd_refusal

    @property
    def limit(self) -> float:
        """The moment up to which the last attempt begins if votes are split."""
        return self.give_up + self.client.overrun

    def follow_crowd(self, now: float) -> Protocol[float]:
        """Pause as long as others of the process ask for the same resources; return the clock.

        The driver ends the pause when this waiter may ask. Its ticket is from before. A waiter
        whose time is over by then, or will be in a moment, gets the refusal that the others got
        last: otherwise a crowd that gives up together would delay the next waiter's answers. If
        that refusal is not known, it asks once, as a client that does not wait, and joins no queue.

        Raises ResourceLocked.
        """
        crowd = self._crowd
        self.ticket = next(self.client.proposals)
        now = yield Pause(self.give_up - self.asked)
        if crowd is not None and crowd.is_refused:
            if 0 < (left := self.give_up - now) < LAST_MOMENT:
                now = yield Pause(left)
            if now >= self.give_up and (known := crowd.error(self.resources)):
                known.waited = known.took = now - self.asked
                raise known
        if now >= self.give_up:
            self._name = ""  # for its only attempt, it need not join a queue
        return now

    def next_attempt(self, now: float) -> Attempt:
        """Return the next attempt, which may have begun in the pause before it."""
        self.attempt = attempt = self.begin(now)
        self.resting, self.begun = False, None
        return attempt

    def begin(self, now: float) -> Attempt:
        """Begin the next attempt, unless the driver has done so in the pause before it."""
        if self.begun is None:
            client = self.client
            proposal = next(client.proposals) + self.lag
            self.ticket = self.ticket or proposal
            ask = Acquire(
                client.deployment, self.resources, f"{next(client.tokens)} {self.holder}", self.ttl,
                proposal, self._name, self.ticket,
            )  # fmt: skip
            # Only the first attempt spares masters: those may be needed if it is lost.
            self.begun = Attempt(ask, now, self.give_up, not self.lost)
        return self.begun

    def note(self, attempt: Attempt) -> None:
        """Note which masters may have the waiter in a queue, and what its crowd may conclude."""
        if self._name:
            self.queued |= attempt.tally.asked
        if self._crowd is not None:
            self._crowd.note(attempt)

    def lease(self, attempt: Attempt, home: object) -> RedlockLease:
        """Return the lease of an attempt that has won the lock, and leave the crowd."""
        if self._waiter is not None:
            self._waiter.leave()
        return RedlockLease(
            self.resources, attempt.ask.token, self.holder, self.ttl, attempt.started,
            attempt.until, attempt.fences,
            waited=attempt.started - self.asked,
            attempts=self.lost + 1,
            home=home,
            reached=self.queued or attempt.tally.reached,
            tally=attempt.tally,
            waiter=self._name,
        )  # fmt: skip

    def undo(self, attempt: Attempt, now: float, *, again: bool) -> Protocol[float]:
        """Release what a lost attempt may have set; leave the queues unless `again` is set."""
        queued = _NONE if again else self.queued
        now = yield from attempt.undo(now, queued, leave=not again)
        self.resting = again and not self._name
        return now

    def undo_interrupted(self, now: float) -> Protocol[float]:
        """Release what the attempt that was interrupted may have set, and leave the queues.

        The release is sent again if the interrupt struck during the undo itself, perhaps before a
        byte was sent.
        """
        attempt = self.begun or self.attempt
        if attempt is not None and not self.resting:
            if self._name:
                self.queued |= attempt.tally.asked
            now = yield from attempt.undo(now, self.queued, leave=True)
        return now

    def refusal(self, now: float) -> NotAcquired:
        """Return the error for a call whose last attempt was lost."""
        attempt = self.attempt
        assert attempt is not None
        error = refusal(self.client.deployment, self.resources, attempt.last.account, attempt.late)
        error.waited, error.took = attempt.started - self.asked, now - self.asked
        error.attempts = self.lost
        return error

    def goes_on(self, attempt: Attempt, now: float) -> bool:
        """Return whether to ask again after an attempt that was lost; see `Attempt.split`."""
        split = attempt.split
        self.lost += 1
        self.splits += split
        return now < self.give_up or (split and self.splits < SPLIT_ROUNDS and now < self.limit)

    def pause(self, attempt: Attempt, now: float) -> Pause:
        """Return the pause after an attempt that was lost; see `retry_delays`.

        If the attempt shows that this client's clock is wrong, the ticket becomes what a majority's
        clocks showed when the wait began.
        """
        ask, started = attempt.ask, attempt.started
        if lag := clock_lag(attempt.tally.account, ask.proposal, now - started):
            self.lag += lag
            self.ticket = ask.proposal + lag - round((started - self.asked) * 1_000_000)
        delay = unheard = self.client.delay(self.lost)
        queueing = bool(ask.waiter) and not attempt.unreachable
        # Where others share the votes, a waiter that has none and is in most queues need not ask
        # again at once. If all asked, a crowd would share the votes again.
        if not attempt.split or (queueing and attempt.queued):
            delay, unheard = retry_delays(attempt.last.account, delay, queueing=queueing)
        end = self.give_up if now < self.give_up else self.limit
        seconds = max(0.0, min(delay, end - now))
        return Pause(seconds, unheard, *_place(attempt), self.ticket, self.begin)


def _place(attempt: Attempt) -> tuple[str, int]:
    """Return the resource in whose queue a majority has the waiter, and how many are in front."""
    account = attempt.last.account
    queued = account.queueing
    if not account.majority(len(queued)):
        return "", 0
    return attempt.ask.resources[queued[0].resource], min(vote.ahead for vote in queued)


def clock_lag(account: Account, shown: int, took: float) -> int:
    """Return by how many µs, at least, this client's clock is behind a majority's; 0 if near.

    The client's clock showed `shown` when the round began; the round took `took` seconds. Each
    master stores a ticket near its own clock: waiters whose clocks are wrong would be in a
    different order on each master, and refuse each other for long.
    """
    times = [vote.time for vote in account.agreeing if vote.time is not None]
    if account.skew is None or not account.majority(len(times)):
        return 0
    most = round(median(times)) - shown
    least = min(max(most - round(took * 1_000_000), 0), most)  # the masters may answer late
    return least if abs(least) > account.skew / 2 else 0


def retry_delays(account: Account, delay: float, *, queueing: bool) -> tuple[float, float]:
    """Return the seconds to pause before asking again without a call.

    The second number is for a waiter that may miss its call. `delay` is random, and grows from
    attempt to attempt up to 0.1.
    """
    if account.unreachable:
        # Otherwise many waiters on a busy host would use the processor time that the replies need.
        delay *= UNREACHABLE
    left = free_in(account)
    queued = account.queueing
    ahead = min((vote.ahead for vote in queued), default=0)
    unheard = delay
    if queueing:
        unheard = _prolonged(FALLBACK + delay / 2, LONGEST, ahead)
        if account.majority(len(queued)):
            delay = _prolonged(CALM * (1 + 10 * delay), CALM_LONGEST, ahead)
        else:
            delay = unheard
    # The expiry of a lock does not call waiters. So the first waiter in the queue asks first and,
    # if that waiter is gone, the next one, all of them within half a second. No other waiter
    # watches a turn that this attempt has begun. Other waiters do watch any other turn. If all of
    # them asked at its end, a crowd would find one turn after the other, and use the processor time
    # that the waiters with these turns need.
    turns = [vote.ttl or 0 for vote in account.votes if vote and vote.reserved]
    spread = 0.5 * ahead / (ahead + 100)
    if account.majority(sum(left >= TURN for left in turns)):
        spread = 0.0
    elif account.majority(len(turns)):
        spread = 0.005 * ahead * max(1.0, ahead / NEAR)
    expired = math.inf if left is None else left + 0.001 + spread
    return min(delay, expired), min(unheard, expired)


def _prolonged(pause: float, longest: float, ahead: int) -> float:
    """Return a pause, longer for more waiters `ahead`, so that not all of them ask together."""
    return pause + (longest - pause) * ahead / (ahead + CROWD)
