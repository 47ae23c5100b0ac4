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
    the time `until`, which may become earlier while it waits.
    """

    __slots__ = (
        "__weakref__", "_callers", "_clock", "_doubted", "_listening", "_need", "_unheard", "name",
        "until", "wake",
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
        self._doubted, self._unheard, self.until = False, None, math.inf

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


class LocalQueues:
    """The waiters of a process or loop that sleep in the masters' queues, by resource.

    A release in this process wakes the next waiter: its attempt leaves directly after the release,
    on the same links, one round trip before the masters' call would have brought it there. Masters
    grant to the first waiter in the queue alone, so no waiter of another process is overtaken.
    """

    def __init__(self) -> None:
        # The ticket of each waiter, and how many waiters of other processes were in front of it.
        self._queues: dict[str, dict[Waiter, tuple[int, int]]] = {}

    def join(self, waiter: Waiter, pause: Pause) -> None:
        """Note that a waiter begins a pause; call `leave` when it is over."""
        if pause.resource:
            queue = self._queues.setdefault(pause.resource, {})
            ours = sum(ticket < pause.ticket for ticket, _ in list(queue.values()))
            queue[waiter] = pause.ticket, pause.ahead - ours

    def leave(self, waiter: Waiter, pause: Pause) -> None:
        """Note that the pause is over."""
        queue = self._queues.get(pause.resource)
        if queue is not None and queue.pop(waiter, None) is not None and not queue:
            self._queues.pop(pause.resource, None)

    def wake_next(self, resources: Sequence[str]) -> None:
        """Wake the next waiter for each of these resources, which a release is freeing.

        Wakes none if the next one may be a waiter of another process.
        """
        for resource in resources:
            queue = self._queues.get(resource)
            # A copy, made in one step: other threads come and go meanwhile.
            if queue and (places := queue.copy()):
                waiter = min(places, key=places.__getitem__)
                _, others = places[waiter]
                if others <= 0:
                    waiter.hurry(0.0)


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
