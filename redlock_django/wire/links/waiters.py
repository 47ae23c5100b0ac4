"""The waiters of a process or loop: one channel on which masters call them, and a name for each."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable
from itertools import count

from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.wire.clock import clock
from redlock_django.wire.links.waiter import Waiter


class Waiters:
    """All waiters that listen on one channel. A waiter without other references is dropped."""

    def __init__(
        self,
        deployment: Deployment,
        process: str = "",
        clock: Callable[[], float] = clock,
    ) -> None:
        self.channel = deployment.wake(process or secrets.token_hex(8))
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
