"""`locks["alias"]`: from `settings.REDLOCK` to services, once for each process."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from redlock_django.backends.base import BaseBackend
from redlock_django.backends.sharded import ShardedBackend
from redlock_django.conf.settings import AliasSettings, load
from redlock_django.engine.commands import Deployment
from redlock_django.engine.rendezvous import identity
from redlock_django.locking import events
from redlock_django.locking.counters import counters


@dataclass(frozen=True)
class LockService:
    """What stands behind one alias: its options and its backend."""

    settings: AliasSettings
    backend: BaseBackend


class LockServices:
    """The services of all aliases, made when first asked for.

    `locks["payments"]` raises InvalidRedlock where the settings are wrong. Unlike Django's
    connections they are shared by all threads: a master has one connection per process.
    """

    def __init__(self) -> None:
        self._services: dict[str, LockService] = {}
        self._making = threading.Lock()
        self.forks = 0  # how many forks this process is away from the first one

    def __getitem__(self, alias: str) -> LockService:
        service = self._services.get(alias)
        if service is None:
            with self._making:
                service = self._services.get(alias)
                if service is None:
                    service = self._services[alias] = _make(load(alias))
        return service

    def __iter__(self) -> Iterator[str]:
        redlock = getattr(settings, "REDLOCK", None)
        return iter(redlock if isinstance(redlock, Mapping) else ())

    def close(self) -> None:
        """Close what belongs to the process; the next use begins anew."""
        with self._making:
            services, self._services = self._services, {}
        for service in services.values():
            service.backend.close()

    async def aclose(self) -> None:
        """Close what belongs to the running loop; the next use begins anew."""
        for service in list(self._services.values()):
            await service.backend.aclose()

    def _forked(self) -> None:
        # Whatever another thread of the parent held at that moment would stay locked.
        self._making = threading.Lock()
        self.forks += 1
        for service in self._services.values():
            service.backend.forked()


def deployments_of(options: AliasSettings) -> tuple[Deployment, ...]:
    """What the clients of an alias must agree on, for each group of its masters."""
    several = len(options.groups) > 1
    identities = [identity(address.store for address in group) for group in options.groups]
    return tuple(
        Deployment(
            names=tuple(address.name for address in group),
            prefix=options.key_prefix,
            max_ttl=options.max_ttl,
            max_clock_skew=options.max_clock_skew,
            restart_delay=options.restart_delay,
            fence_ttl=options.fence_ttl,
            groups=tuple(identities) if several else (),
            group=index,
        )
        for index, group in enumerate(options.groups)
    )


def _make(options: AliasSettings) -> LockService:
    kind: type[BaseBackend] = import_string(options.backend)
    groups = [
        kind(
            options.alias,
            addresses=addresses,
            deployment=deployment,
            master_timeout=options.master_timeout,
            connect_timeout=options.connect_timeout,
            tolerate=options.tolerate,
            notice=partial(events.master, options.alias),
        )
        for addresses, deployment in zip(options.groups, deployments_of(options), strict=True)
    ]
    backend = groups[0] if len(groups) == 1 else ShardedBackend(groups)
    counters.set_masters(options.alias, backend.names)
    return LockService(options, backend)


locks = LockServices()


def _settings_changed(*, setting: str, **_: Any) -> None:
    if setting in ("REDLOCK", "CACHES"):
        locks.close()


# So that masters which have still to answer hear the last releases of this process.
atexit.register(locks.close)
setting_changed.connect(_settings_changed, dispatch_uid="redlock_django.locking.handler")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=locks._forked)
