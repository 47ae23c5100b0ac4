"""Who waits, and hears the masters call: one channel for a process or a loop, a name for each."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable
from itertools import count

from redlock_django.engine.commands import Deployment
from redlock_django.engine.quorum import quorum
from redlock_django.wire.link import nobody


class Waiter:
    """One protocol that waits for a lock, under the name that stands in the queues.

    It is `decided` that it need wait no longer once a majority of masters has called it: fewer
    may hold only what a vote left behind that somebody else has lost.
    """

    __slots__ = ("__weakref__", "_callers", "_need", "name", "wake")

    def __init__(self, name: str, masters: int) -> None:
        self.name = name
        self.wake: Callable[[], object] = nobody
        self._callers: set[int] = set()
        self._need = quorum(masters)

    @property
    def decided(self) -> bool:
        """Whether enough masters have called."""
        return len(self._callers) >= self._need

    def call(self, master: int) -> None:
        """A master (0-based index) says that it is this waiter's turn."""
        self._callers.add(master)
        if self.decided:
            self.wake()

    def ask(self) -> None:
        """A round begins: what was called before has been heard."""
        self._callers.clear()


class Waiters:
    """All waiters that hear on one channel. A waiter nobody keeps any more is forgotten."""

    def __init__(self, deployment: Deployment) -> None:
        self.channel = deployment.wake(secrets.token_hex(8))
        self._masters = deployment.masters
        self._numbers = count(1)
        self._by_name: weakref.WeakValueDictionary[bytes, Waiter] = weakref.WeakValueDictionary()

    def new(self) -> Waiter:
        """Somebody who begins to wait."""
        waiter = Waiter(f"{self.channel} {next(self._numbers)}", self._masters)
        self._by_name[waiter.name.encode()] = waiter
        return waiter

    def call(self, name: object, master: int) -> bool:
        """A master calls a name, which need not be known: anybody may have sent the hint."""
        waiter = self._by_name.get(name) if isinstance(name, bytes) else None
        if waiter is not None:
            waiter.call(master)
        return waiter is not None
