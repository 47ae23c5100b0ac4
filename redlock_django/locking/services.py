"""`locks["alias"]`: the lock service of each alias, created once for each process."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed

from redlock_django.backends.base import BaseBackend
from redlock_django.conf.settings import AliasSettings, load
from redlock_django.locking import reports, thread_state
from redlock_django.locking.reports import counters


@dataclass(frozen=True)
class LockService:
    """The lock service of one alias: its settings and its backend."""

    settings: AliasSettings
    backend: BaseBackend


class LockServices:
    """The services of all aliases, created at the first use.

    `locks["payments"]` raises InvalidRedlock if the settings are wrong. Unlike Django's
    connections, services are shared by all threads: a process has one connection to a master.
    """

    def __init__(self) -> None:
        self.services: dict[str, LockService] = {}
        """The services that are open, by alias."""
        self._making = threading.RLock()
        self.forks = 0  # the number of forks between the first process and this one

    def __getitem__(self, alias: str) -> LockService:
        if threading.get_ident is not thread_state.get_ident:
            thread_state.follow_patches()
        service = self.services.get(alias)
        if service is None:
            with self._making:
                service = self.services.get(alias)
                if service is None:
                    service = self.services[alias] = _make(load(alias))
        return service

    def __iter__(self) -> Iterator[str]:
        redlock = getattr(settings, "REDLOCK", None)
        return iter(redlock if isinstance(redlock, Mapping) else ())

    def connect(self) -> None:
        """Begin to connect to the servers of every alias, in the background; for a process's start.

        Returns at once. Without it, the first lock or health check connects: masters that are fresh
        or have restarted begin to be trusted then. Raises InvalidRedlock if the settings are wrong.
        """
        for alias in self:
            self[alias].backend.connect()

    async def aconnect(self) -> None:
        """Begin to connect the running loop, as `connect` does the threads of the process."""
        for alias in self:
            await self[alias].backend.aconnect()

    def close(self) -> None:
        """Close the connections of the process; the next use connects again."""
        with self._making:
            services, self.services = self.services, {}
        for service in services.values():
            service.backend.close()

    async def aclose(self) -> None:
        """Close the connections of the running loop; the next use connects again."""
        for service in list(self.services.values()):
            await service.backend.aclose()

    def _forked(self) -> None:
        # A lock that another thread of the parent held during the fork would stay locked.
        self._making = threading.RLock()
        self.forks += 1
        for service in self.services.values():
            service.backend.forked()


def _make(options: AliasSettings) -> LockService:
    thread_state.check_poll()
    alias = options.alias
    backend_class = options.backend_class
    notice = partial(reports.server, alias, backend_class.servers_are_masters)
    backend = backend_class(alias, options.store, notice)
    counters.set_masters(alias, options.store.names)
    return LockService(options, backend)


locks = LockServices()


def _settings_changed(*, setting: str, **_: Any) -> None:
    if setting in ("REDLOCK", "CACHES"):
        locks.close()


# So that slow masters, too, receive the last releases of this process.
atexit.register(locks.close)
setting_changed.connect(_settings_changed, dispatch_uid="redlock_django.locking.services")
thread_state.reset_with_threads(locks._forked)
