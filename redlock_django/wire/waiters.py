"""The waiters of a process or loop: one channel on which masters call them, and a name for each."""

from __future__ import annotations

import math
import secrets
import weakref
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from itertools import count

from redlock_django.engine.deployment import Deployment
from redlock_django.engine.protocol_steps import Pause
from redlock_django.engine.quorum import quorum
from redlock_django.wire.clock import clock
from redlock_django.wire.exchange import wake_none

WATCH = 0.11  # seconds until a waiter that watches a turn tries again: a little more than a turn


class Waiter:
    """One protocol that waits for a lock; its name is stored in the masters' queues.

    It is `decided`, and need not wait any longer, once a majority of masters has called it: fewer
    may hold only what is left of a vote that another client has lost. Otherwise it asks again at
    the time `until`, which may become earlier while it waits. `is_next` is True if the lock is
    being freed, and it is this waiter's turn as far as is known here.
    """

    __slots__ = (
        "__weakref__", "_callers", "_clock", "_doubted", "_listening", "_need", "_unheard",
        "is_next", "name", "until", "wake",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        masters: int,
        listening: AbstractSet[int],
        clock: Callable[[], float] = clock,
    ) -> None:
        self.name = name
        self.wake: Callable[[], object] = wake_none
        self.until = math.inf
        self.is_next = False
        self._unheard: float | None = None  # for the pause; None during a round
        self._doubted = False
        self._callers: set[int] = set()
        self._listening = listening
        self._need = quorum(masters)
        self._clock = clock

    @property
    def decided(self) -> bool:
        """True if enough masters have called."""
        return len(self._callers) >= self._need

    def call(self, master: int) -> None:
        """Note that a master (0-based index) called this waiter: its turn has come."""
        self._callers.add(master)
        if self.decided:
            self.wake()

    def ask(self) -> None:
        """Forget earlier calls: a new round begins, which answers them."""
        self._callers.clear()
        self._doubted = self.is_next = False
        self._unheard, self.until = None, math.inf

    def rest(self, pause: Pause) -> float:
        """Begin a pause; return its seconds if nothing happens meanwhile."""
        self._unheard = min(pause.seconds, pause.unheard)
        is_heard = len(self._listening) >= self._need and not self._doubted
        seconds = pause.seconds if is_heard else self._unheard
        now = self._clock()
        if self.until < now + seconds:
            return max(0.0, self.until - now)  # the round may have lasted longer
        self.until = now + seconds
        return seconds

    def go_next(self) -> None:
        """Ask now, without waiting for the masters' call."""
        self.is_next = True
        self.hurry(0.0)

    def watch(self) -> None:
        """Note that the turn of another waiter has begun: if it passes unused, this one asks."""
        self.hurry(WATCH)

    def join(self) -> None:
        """Note that a link is new: its master may not have this waiter in its queue."""
        # A round under way is sent on the link after the subscription.
        if self._unheard is not None:
            self.hurry(self._unheard)

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


class LocalQueue:
    """The waiters that sleep in the masters' queue of one resource.

    The place of a waiter is how many others were in front of it when it was refused, after the
    `served` that had left the queue before. With a place above `served`, a waiter of another
    process, or one that has given up, may be in front of it.
    """

    __slots__ = ("places", "served")

    def __init__(self) -> None:
        self.places: dict[Waiter, int] = {}
        self.served = 0

    def next(self) -> Waiter | None:
        """Return the next waiter, None if it may be one of another process."""
        places = self.places.copy()  # in one step, because other threads come and go meanwhile
        first = min(places, key=places.__getitem__, default=None)
        return None if first is None or places[first] > self.served else first


class LocalQueues:
    """The local queues of all resources.

    A release in this process wakes the next waiter: its attempt leaves directly after the release,
    on the same links, one round trip before the masters' call would have brought it there. Masters
    grant to the first waiter in the queue alone, so no waiter of another process is overtaken.
    """

    def __init__(self) -> None:
        self._queues: dict[str, LocalQueue] = {}

    def join(self, waiter: Waiter, pause: Pause) -> None:
        """Note that a waiter begins a pause; call `leave` when it is over."""
        if pause.resource:
            queue = self._queues.setdefault(pause.resource, LocalQueue())
            queue.places[waiter] = queue.served + pause.ahead

    def leave(self, waiter: Waiter, pause: Pause) -> None:
        """Note that the pause is over: because of the waiter's turn, or for any other reason."""
        queue = self._queues.get(pause.resource)
        if queue is None or (place := queue.places.pop(waiter, None)) is None:
            return
        if waiter.decided or waiter.is_next:
            queue.served = max(queue.served, place + 1)
        if not queue.places:
            self._queues.pop(pause.resource, None)

    def wake_next(self, resources: Sequence[str]) -> None:
        """Wake the next waiter for each of these resources, which a release is freeing."""
        for resource in resources:
            queue = self._queues.get(resource)
            if queue is not None and (waiter := queue.next()) is not None:
                waiter.go_next()


class Waiters:
    """All waiters that listen on one channel. A waiter without other references is dropped."""

    def __init__(
        self,
        deployment: Deployment,
        process: str = "",
        clock: Callable[[], float] = clock,
    ) -> None:
        self.channel = deployment.wake(process or secrets.token_hex(8))
        self.queues = LocalQueues()
        self._masters = deployment.masters
        self._clock = clock
        self._numbers = count(1)
        self._listening: set[int] = set()  # the masters that accepted the subscription
        self._by_name: weakref.WeakValueDictionary[bytes, Waiter] = weakref.WeakValueDictionary()

    def new(self) -> Waiter:
        """Return a new waiter."""
        name = f"{self.channel} {next(self._numbers)}"
        waiter = Waiter(name, self._masters, self._listening, self._clock)
        self._by_name[name.encode()] = waiter
        return waiter

    def begin_pause(self, waiter: Waiter, pause: Pause) -> None:
        """Begin a pause of a waiter; call `end_pause` when it is over."""
        waiter.rest(pause)
        self.queues.join(waiter, pause)

    def end_pause(self, waiter: Waiter, pause: Pause) -> None:
        """Note that a pause is over, however it ended."""
        self.queues.leave(waiter, pause)
        waiter.wake = wake_none

    def call(self, name: object, master: int) -> bool:
        """Pass a master's call to the waiter of that name; return whether there is one.

        A space before the name asks the waiter to watch the turn of another one. The name may be
        unknown: any client can publish on the channel.
        """
        if not isinstance(name, bytes):
            return False
        waiter = self._by_name.get(name.removeprefix(b" "))
        if waiter is None:
            return False
        if name.startswith(b" "):
            waiter.watch()
        else:
            waiter.call(master)
        return True

    def listen(self, master: int) -> None:
        """Note that a master (0-based index) calls on this channel from now on."""
        self._listening.add(master)
        for waiter in list(self._by_name.values()):
            waiter.join()

    def lose(self, master: int) -> None:
        """Note that the link to a master was lost, and perhaps a call with it."""
        if master in self._listening:
            self._listening.discard(master)
            for waiter in list(self._by_name.values()):
                waiter.doubt()
