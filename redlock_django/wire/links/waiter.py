"""A waiter, as its process or loop knows it, and the crowd of those that wait for the same."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from enum import Enum
from itertools import islice

from redlock_django.engine.protocol.votes import Vote
from redlock_django.engine.quorum import quorum
from redlock_django.engine.refusal import CrowdRefusal
from redlock_django.engine.steps import Pause, Round
from redlock_django.wire.clock import clock
from redlock_django.wire.link.link import Exchange, wake_none

HOUR = 3600.0  # seconds of the longest sleep; other events end it
WATCH = 0.11  # seconds until a waiter that watches a turn tries again: a little more than a turn
# How many waiters of a process or loop ask the masters for the same resources: the waiter whose
# turn it is, the next one, and one on its way into the queues.
MOST_ASKING = 3
PARTIAL = 0.05  # seconds until a waiter that a minority of masters has granted the lock tries again
NO_PAUSE = Pause(0.0)


class WaiterState(Enum):
    """The state of a waiter: what it does."""

    HELD_BACK = "it may not ask yet, because others of its crowd do"
    ASKING = "its caller sends a round and waits for the verdict, or is about to"
    RESTING = "it sleeps until a majority of masters has called it, or its time has come"
    SENT = "it sleeps on, because a round was sent for it, until that is decided"


HELD_BACK, ASKING = WaiterState.HELD_BACK, WaiterState.ASKING
RESTING, SENT = WaiterState.RESTING, WaiterState.SENT


class Waiter:
    """One protocol that waits for a lock; its name is stored in the masters' queues.

    A majority of masters must call it: fewer may call only because another client has undone an
    attempt that it lost. These methods change its `state`, each by one assignment, so that an
    interrupt leaves it in one state or the other:

    - `hold_back` and `let_ask` are for its `crowd`: it is HELD_BACK, then ASKING.
    - `ask` is called when its caller sends a round, `rest` when it begins a `pause`: a waiter that
      is ASKING is RESTING then.
    - `send` is called when the driver has `sent` a round for it: it is SENT. Its caller finds the
      pause over once that round is decided, and `takes_verdict`.
    - `grant` is called when a release has set the lock on a master by the offer of the `pause`.
      Once this has happened on a majority, the waiter is SENT, as if a round had been decided.
    - `end_rest` is called when a pause is over.
    """

    __slots__ = (
        "__weakref__", "_callers", "_clock", "_doubted", "_granted", "_listening", "_need",
        "_until", "called_slot", "crowd", "name", "pause", "sent", "state", "wake",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        masters: int,
        listening: AbstractSet[int],
        clock: Callable[[], float] = clock,
    ) -> None:
        self.name = name
        self.state = ASKING
        self.wake: Callable[[], object] = wake_none
        self.pause = NO_PAUSE
        self.sent: Exchange | None = None
        self.crowd: Crowd | None = None
        self.called_slot: int | None = None
        self._until = math.inf
        self._doubted = False  # a call to it may be lost since its last round
        # The masters' grants by its offer, since its last round.
        self._granted: Exchange | None = None
        self._callers: set[int] = set()
        self._listening = listening
        self._need = quorum(masters)
        self._clock = clock

    @property
    def until(self) -> float:
        """The time at which it asks again, which others may bring forward while it sleeps."""
        return self._until if self.state is not SENT else self._clock() + HOUR

    @property
    def decided(self) -> bool:
        """True if enough masters have called, or answered the round that was sent for it."""
        sent = self.sent if self.state is SENT else None
        return len(self._callers) >= self._need if sent is None else sent.decided

    @property
    def held_back(self) -> bool:
        """True as long as it may not ask."""
        return self.state is HELD_BACK

    @property
    def crowd_refusal(self) -> CrowdRefusal | None:
        """The last answer to its crowd; None if it has no crowd."""
        return None if self.crowd is None else self.crowd.refusal

    # Its states.

    def hold_back(self, crowd: Crowd) -> None:
        """Join a crowd whose first waiters ask."""
        self.crowd = crowd
        self.state = HELD_BACK

    def let_ask(self) -> None:
        """Note that it is one of the first of its crowd, and may ask."""
        self.state = ASKING

    def ask(self) -> None:
        """Begin a round, which answers earlier calls."""
        self._forget_calls()
        self.state = ASKING

    def rest(self, pause: Pause) -> float:
        """Begin a pause; return its seconds if nothing happens meanwhile."""
        if self.state is ASKING:
            self.state = RESTING
        self.pause = pause  # last: from here on a round may be sent for it
        is_heard = len(self._listening) >= self._need and not self._doubted
        seconds = pause.seconds if is_heard else min(pause.seconds, pause.unheard)
        now = self._clock()
        if self._until < now + seconds:
            return max(0.0, self._until - now)  # the round may have lasted longer
        self._until = now + seconds
        return seconds

    def send(self, sent: Exchange) -> None:
        """Note that a round was sent for this waiter, which sleeps on until it is decided."""
        self.sent = sent
        self.state = SENT  # after an interrupt here, earlier calls remain noted, without effect
        self._forget_calls()
        if sent.decided:
            self.wake()

    def end_rest(self) -> None:
        """End a pause: from here on its caller sends its rounds."""
        if self.state is RESTING:
            self.state = ASKING
        self.pause = NO_PAUSE  # whose `begin` refers to the protocol, and by that to this waiter

    def takes_verdict(self, asked: Round) -> bool:
        """Return whether this round was sent during the pause, which has ended with its verdict."""
        if self.state is not SENT or self.sent is None or self.sent.asked is not asked:
            return False
        self.state = ASKING
        self.sent = None
        return True

    def leave(self) -> None:
        """Leave the crowd, so that its next waiter may ask: the call is over, however it ended."""
        if self.crowd is not None:
            self.crowd.leave(self)

    # What ends or shortens a pause.

    def call(self, master: int) -> bool:
        """Note a call of a master (0-based index): return whether enough of them have called."""
        self._callers.add(master)
        return self.decided

    def grant(self, master: int, vote: Vote) -> bool:
        """Note that a master has set the lock of the pause's offer for this waiter.

        Once enough masters have, the pause ends. Until then, a grant counts as a call as well:
        return whether enough masters have called, so that the waiter must ask now.
        """
        offer = self.pause.offer
        if self.state is not RESTING or offer is None:
            return False
        granted = self._granted = self._granted or Exchange(offer.attempt, 0, wake_none)
        granted.cast(master, vote)
        if granted.decided:
            self.send(granted)
            return False
        self.hurry(PARTIAL)
        return self.call(master)

    def _forget_calls(self) -> None:
        self._callers.clear()
        self.called_slot = None
        self._doubted, self._until = False, math.inf
        self._granted = None

    def answered(self) -> None:
        """Wake the caller: the round that was sent for this waiter is decided."""
        self.wake()

    def watch(self) -> None:
        """Note that the turn of another waiter has begun: this waiter asks if it passes unused."""
        self.hurry(WATCH)

    def join(self) -> None:
        """Note that a link is new: its master may not have this waiter in its queue."""
        # A round under way is sent on the link after the subscription.
        if self.state is RESTING:
            self.hurry(min(self.pause.seconds, self.pause.unheard))

    def doubt(self) -> None:
        """Note that a link was lost, and perhaps a call with it."""
        self._doubted = True
        self.join()

    def hurry(self, seconds: float) -> None:
        """Ask again after that many seconds at the latest."""
        until = self._clock() + seconds
        if until < self._until:
            self._until = until
            self.wake()

    def ask_now(self) -> None:
        """Ask again at once."""
        self.hurry(0.0)

    def forget_wakeup(self) -> None:
        """Forget what has ended a pause, which must not end the next pause as well."""
        self.wake, self._until = wake_none, math.inf


class Crowd:
    """The waiters of a process or loop for the same resources, in the order of their tickets.

    Only the first MOST_ASKING ask the masters and join their queues. Once one of them is served or
    gives up, the next one may ask; its ticket is as old as its wait. So the first of all waiters is
    always in the queues, and the order is the same as if all asked. But a crowd that comes at one
    moment does not keep a busy host from answering the first of it: 1,000 waiters were served in
    3.5 and not 5.2 s; when their waits of 2 s ended, they had sent 1,500 and not 17,000 commands
    (five masters on two busy cores, 24 November 2026).
    """

    __slots__ = ("__weakref__", "_waiters", "refusal")

    def __init__(self) -> None:
        self.refusal = CrowdRefusal()
        # Weak: an interrupt may end a call before its waiter leaves.
        self._waiters: dict[str, weakref.ref[Waiter]] = {}

    def join(self, waiter: Waiter) -> None:
        """Add a waiter as the last one."""
        waiter.hold_back(self)  # first: a waiter that leaves from now on may let it ask
        self._waiters[waiter.name] = weakref.ref(waiter)
        if len(self._waiters) <= MOST_ASKING or waiter in self._first():
            waiter.let_ask()

    def leave(self, waiter: Waiter) -> None:
        """Remove a waiter, and let the next one ask."""
        self._waiters.pop(waiter.name, None)
        for other in self._first() if len(self._waiters) >= MOST_ASKING else ():
            if other.held_back:
                other.let_ask()
                other.ask_now()

    def _first(self) -> list[Waiter]:
        """Return the waiters that may ask."""
        # A copy, made in one step: other threads come and go meanwhile.
        living = (waiter for one in list(self._waiters.values()) if (waiter := one()) is not None)
        return list(islice(living, MOST_ASKING))
