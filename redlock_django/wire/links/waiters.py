"""The waiters of a process or loop: one channel on which masters call them, and a name for each."""

from __future__ import annotations

import math
import secrets
import weakref
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from itertools import count

from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.quorum import quorum
from redlock_django.engine.steps import Pause
from redlock_django.wire.links.link import wake_none

WATCH = 0.11  # seconds until a waiter that watches a turn tries again: a little more than a turn


class Waiter:
    """One protocol that waits for a lock; its name is stored in the masters' queues.

    A majority of masters must call it: fewer may call only because another client has undone an
    attempt that it lost. Its caller calls `ask` when it sends a round, `rest` when it begins a
    pause, and `end_rest` when that is over.
    """

    __slots__ = (
        "__weakref__", "_callers", "_clock", "_doubted", "_listening", "_need", "called_slot",
        "name", "pause", "until", "wake",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        masters: int,
        listening: AbstractSet[int],
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.wake: Callable[[], object] = wake_none
        self.called_slot: int | None = None
        # The time at which it asks again, which others may bring forward while it sleeps.
        self.until = math.inf
        self.pause: Pause | None = None  # in which it sleeps; None while it asks
        self._doubted = False  # a call to it may be lost since its last round
        self._callers: set[int] = set()
        self._listening = listening
        self._need = quorum(masters)
        self._clock = clock

    @property
    def decided(self) -> bool:
        """True if enough masters have called."""
        return len(self._callers) >= self._need

    def ask(self) -> None:
        """Begin a round, which answers earlier calls."""
        self._callers.clear()
        self.called_slot = None
        self._doubted, self.until = False, math.inf
        self.pause = None

    def rest(self, pause: Pause) -> float:
        """Begin a pause; return its seconds if nothing happens meanwhile."""
        self.pause = pause
        is_heard = len(self._listening) >= self._need and not self._doubted
        seconds = pause.seconds if is_heard else min(pause.seconds, pause.unheard)
        now = self._clock()
        if self.until < now + seconds:
            return max(0.0, self.until - now)  # the round may have lasted longer
        self.until = now + seconds
        return seconds

    def end_rest(self) -> None:
        """End a pause; what has ended it must not end the next pause as well."""
        self.pause = None
        self.wake, self.until = wake_none, math.inf

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
        if (pause := self.pause) is not None:
            self.hurry(min(pause.seconds, pause.unheard))

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


class Waiters:
    """All waiters that listen on one channel. A waiter without other references is dropped."""

    def __init__(self, deployment: Deployment, clock: Callable[[], float]) -> None:
        self.channel = deployment.wake(secrets.token_hex(8))
        self.is_used = False  # from the first waiter on: then every link listens
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

    def call(self, name: object, master: int) -> bool:
        """Pass a master's call to the waiter of that name; return whether there is one.

        A space before the name asks the waiter to watch the turn of another one. The name may be
        unknown: any client can publish on the channel.
        """
        if not isinstance(name, bytes):
            return False
        waiter = self._by_name.get(name.removeprefix(b" "))
        if waiter is None:  # perhaps the call names a slot
            name, _, slot = name.rpartition(b"/")
            waiter = self._by_name.get(name)
            if waiter is None or not slot.isdigit():
                return False
            waiter.called_slot = int(slot)
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
