"""The waiters of a process or loop: one channel on which masters call them, and a name for each."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable
from itertools import count

from redlock_django.engine.deployment import Deployment
from redlock_django.engine.quorum import quorum
from redlock_django.wire.link import wake_none


class Waiter:
    """One protocol that waits for a lock; its name is stored in the masters' queues.

    It is `decided`, and need not wait any longer, once a majority of masters has called it: fewer
    may hold only what is left of a vote that another client has lost.
    """

    __slots__ = ("__weakref__", "_callers", "_need", "name", "wake")

    def __init__(self, name: str, masters: int) -> None:
        self.name = name
        self.wake: Callable[[], object] = wake_none
        self._callers: set[int] = set()
        self._need = quorum(masters)

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


class Waiters:
    """All waiters that listen on one channel. A waiter without other references is dropped."""

    def __init__(self, deployment: Deployment) -> None:
        self.channel = deployment.wake(secrets.token_hex(8))
        self._masters = deployment.masters
        self._numbers = count(1)
        self._by_name: weakref.WeakValueDictionary[bytes, Waiter] = weakref.WeakValueDictionary()

    def new(self) -> Waiter:
        """Return a new waiter."""
        waiter = Waiter(f"{self.channel} {next(self._numbers)}", self._masters)
        self._by_name[waiter.name.encode()] = waiter
        return waiter

    def call(self, name: object, master: int) -> bool:
        """Pass a master's call to the waiter of that name; return whether there is one.

        The name may be unknown: any client can publish on the channel.
        """
        waiter = self._by_name.get(name) if isinstance(name, bytes) else None
        if waiter is not None:
            waiter.call(master)
        return waiter is not None
