"""A waiter, as its process or loop knows it, and the crowd of those that wait for the same."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from enum import Enum
from itertools import islice

from redlock_django.engine.quorum import quorum
from redlock_django.engine.refusal import CrowdRefusal
from redlock_django.engine.steps import Pause
from redlock_django.wire.clock import clock
from redlock_django.wire.link.link import wake_none

WATCH = 0.11  # seconds until a waiter that watches a turn tries again: a little more than a turn
# How many waiters of a process or loop ask the masters for the same resources: the waiter whose
# turn it is, the next one, and one on its way into the queues.
MOST_ASKING = 3
NO_PAUSE = Pause(0.0)


class WaiterState(Enum):
    """The state of a waiter: what it does."""

    HELD_BACK = "it may not ask yet, because others of its crowd do"
    ASKING = "its caller sends a round and waits for the verdict, or is about to"
    RESTING = "it sleeps until a majority of masters has called it, or its time has come"


HELD_BACK, ASKING = WaiterState.HELD_BACK, WaiterState.ASKING
RESTING = WaiterState.RESTING


class Waiter:
    """One protocol that waits for a lock; its name is stored in the masters' queues.

    A majority of masters must call it: fewer may call only because another client has undone an
    attempt that it lost. These methods change its `state`, each by one assignment, so that an
    interrupt leaves it in one state or the other:

    - `hold_back` and `let_ask` are for its `crowd`: it is HELD_BACK, then ASKING.
    - `ask` is called when its caller sends a round, `rest` when it begins a `pause`: a waiter that
      is ASKING is RESTING then.
    - `end_rest` is called when a pause is over: it is ASKING again.
    """

    __slots__ = (
        "__weakref__", "_callers", "_clock", "_doubted", "_listening", "_need", "_pause",
        "called_slot", "crowd", "name", "state", "until", "wake",
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
        self.crowd: Crowd | None = None
        self.called_slot: int | None = None
        # The time at which it asks again, which others may bring forward while it sleeps.
        self.until = math.inf
        self._pause = NO_PAUSE  # the last one
        self._doubted = False  # a call to it may be lost since its last round
        self._callers: set[int] = set()
        self._listening = listening
        self._need = quorum(masters)
        self._clock = clock

    @property
    def decided(self) -> bool:
        """True if enough masters have called."""
        return len(self._callers) >= self._need

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
        self._callers.clear()
        self.called_slot = None
        self._doubted, self.until = False, math.inf
        self.state = ASKING

    def rest(self, pause: Pause) -> float:
        """Begin a pause; return its seconds if nothing happens meanwhile."""
        self._pause = pause
        if self.state is ASKING:
            self.state = RESTING
        is_heard = len(self._listening) >= self._need and not self._doubted
        seconds = pause.seconds if is_heard else min(pause.seconds, pause.unheard)
        now = self._clock()
        if self.until < now + seconds:
            return max(0.0, self.until - now)  # the round may have lasted longer
        self.until = now + seconds
        return seconds

    def end_rest(self) -> None:
        """End a pause; what has ended it must not end the next pause as well."""
        if self.state is RESTING:
            self.state = ASKING
        self.wake, self.until = wake_none, math.inf

    def leave(self) -> None:
        """Leave the crowd, so that its next waiter may ask: the call is over, however it ended."""
        if self.crowd is not None:
            self.crowd.leave(self)

    # What ends or shortens a pause.

    def call(self, master: int) -> None:
        """Note a call of a master (0-based index), and ask once enough of them have called."""
        self._callers.add(master)
        if self.decided:
            self.wake()

    def watch(self) -> None:
        """Note that the turn of another waiter has begun: this waiter asks if it passes unused."""
        self.hurry(WATCH)

    def join(self) -> None:
        """Note that a link is new: its master may not have this waiter in its queue."""
        # A round under way is sent on the link after the subscription.
        if self.state is RESTING:
            self.hurry(min(self._pause.seconds, self._pause.unheard))

    def doubt(self) -> None:
        """Note that a link was lost, and perhaps a call with it."""
        self._doubted = True
        self.join()

    def hurry(self, seconds: float) -> None:
        """Ask again after that many seconds at the latest."""
        until = self._clock() + seconds
        if until < self.until:
            self.until = until
            self.wake()

    def ask_now(self) -> None:
        """Ask again at once."""
        self.hurry(0.0)


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
