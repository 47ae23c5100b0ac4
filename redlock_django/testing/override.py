"""Replace the masters in a test: in memory (`memory_masters`) or real (`real_masters`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.test.utils import TestContextDecorator, override_settings
from django.utils.module_loading import import_string

from redlock_django.backends.base import Section
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.backends.redis.settings import RedlockSettings
from redlock_django.conf.settings import DEFAULTS, OF_SERVERS
from redlock_django.locking.services import locks
from redlock_django.wire.servers.trust_declaration import declare, read_state

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster

_MEMORY = "redlock_django.backends.memory.MemoryBackend"
# Seconds; longer than the defaults, for busy machines.
_MASTER_TIMEOUT, _CONNECT_TIMEOUT = 0.5, 5.0


class memory_masters(TestContextDecorator):  # noqa: N801 - named like override_settings
    """Replace all masters of `settings.REDLOCK` by masters in memory without locks.

    A context manager, and a decorator for test functions (sync or async) and `unittest` classes.
    `with` returns the MemoryBackend of the alias `using`; None is "default", or else the first
    alias. All other settings are kept. The number of masters stays the same, and aliases with the
    same MASTERS share them. Without REDLOCK there is the alias "default" with one master.
    """

    def __init__(self, using: str | None = None, **kwargs: Any) -> None:
        self.using = using
        super().__init__(**kwargs)

    def enable(self) -> MemoryBackend:
        """Replace the masters and return the backend."""
        sections = {alias: {**section, "BACKEND": _MEMORY} for alias, section in _sections()}
        self._settings = override_settings(REDLOCK=sections)
        self._settings.enable()
        MemoryBackend.passed = 0.0
        first: dict[tuple[Any, ...], MemoryBackend] = {}
        for alias in sections:
            backend = _in_memory(alias)
            where = tuple(address.endpoint for address in backend.addresses) or (alias,)
            backend.share(first.setdefault(where, backend))
        return _in_memory(self.using or ("default" if "default" in sections else next(iter(locks))))

    def __enter__(self) -> MemoryBackend:  # type: ignore[override]  # the stubs say Apps
        return self.enable()

    def disable(self) -> None:
        """Restore the settings."""
        self._settings.disable()
        MemoryBackend.passed = 0.0


@contextmanager
def real_masters(masters: Sequence[LocalMaster]) -> Iterator[None]:
    """Replace all masters of `settings.REDLOCK` by these servers: running, empty and trusted.

    Other settings are kept. Aliases with the same MASTERS remain the same lock service; the
    others are separated by KEY_PREFIX.
    """
    for master in masters:
        if master.alive:
            master.resume()
        else:
            master.start()
        with master.client() as client:
            client.flushall()
    prefixes: dict[str, str] = {}
    redlock = {}
    for alias, section in _sections():
        prefix = section.get("KEY_PREFIX", RedlockSettings.DEFAULTS["KEY_PREFIX"])
        where = repr(section.get("MASTERS"))
        redlock[alias] = {
            "MASTER_TIMEOUT": min(_MASTER_TIMEOUT, 0.45 * locks[alias].settings.ttl),
            "CONNECT_TIMEOUT": _CONNECT_TIMEOUT,
            **{key: value for key, value in section.items() if key not in OF_SERVERS},
            "BACKEND": DEFAULTS["BACKEND"],
            "MASTERS": [master.url for master in masters],
            "OPTIONS": {},
            "KEY_PREFIX": f"{prefix}-{prefixes.setdefault(where, alias)}",
        }
    with override_settings(REDLOCK=redlock):
        for alias in redlock:
            store = locks[alias].settings.store
            assert isinstance(store, RedlockSettings)
            deployment, timeout = store.deployment, store.connect_timeout
            for address in store.addresses:
                state = read_state(address, deployment, store.tolerate, timeout)
                declare(state, deployment, timeout, "trust")
        yield


def _sections() -> Iterable[tuple[str, Section]]:
    redlock: Mapping[str, Section] = getattr(settings, "REDLOCK", None) or {"default": {}}
    return [(alias, _for_masters(section)) for alias, section in redlock.items()]


def _for_masters(section: Section) -> Section:
    """Return a section without the keys that only its own store knows."""
    backend = import_string(section.get("BACKEND", DEFAULTS["BACKEND"]))
    own = backend.settings_class.DEFAULTS.keys() - RedlockSettings.DEFAULTS.keys()
    return {key: value for key, value in section.items() if key not in own}


def _in_memory(alias: str) -> MemoryBackend:
    backend = locks[alias].backend
    assert isinstance(backend, MemoryBackend)
    return backend
