"""Read and check `settings.REDLOCK`: one frozen `AliasSettings` for each alias."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from redlock_django.backends.base import BaseBackend, StoreSettings
from redlock_django.backends.values import (
    LONGEST_WAIT,
    SHORTEST_TTL,
    choice,
    duration,
    mapping,
    seconds,
    several,
    whole,
)
from redlock_django.exceptions import InvalidRedlock
from redlock_django.wire.servers.address import nearest

STATUSES = (409, 423, 429, 503)
"""The HTTP statuses that STATUS may choose for a held lock."""

STORES = tuple(
    f"redlock_django.backends.{name}"
    for name in (
        "redis.RedisBackend",
        "database.DatabaseBackend",
        "zookeeper.ZooKeeperBackend",
        "memory.MemoryBackend",
    )
)
"""The stores of this package; the last one excludes no other process."""

OF_SERVERS = ("PROFILE", "SENTINELS", "SENTINEL_OPTIONS")
"""Keys for Redis alone that are likely to stay in a section when its BACKEND is changed."""

LONGEST_RELEASE = 64  # characters

DEFAULTS: Mapping[str, Any] = {
    "BACKEND": "redlock_django.backends.redis.RedisBackend",
    "TTL": 10,
    "WAIT": 0,
    "MAX_WAITERS": 4,
    "MAX_HOLD": 300,
    "STATUS": 423,
    "ON_UNAVAILABLE": "refuse",
    "RELEASE": "",
    "RULES": (),
    "IDEMPOTENCY": {},
}
"""The keys of `REDLOCK[alias]` whatever its store, with their default values."""


@dataclass(frozen=True, kw_only=True)
class AliasSettings:
    """The settings of one alias, checked and complete. Durations are in seconds.

    `store` has the settings that are the store's own.
    """

    alias: str
    backend_class: type[BaseBackend]
    store: StoreSettings
    ttl: float
    wait: float
    max_waiters: int
    max_hold: float
    status: int
    on_unavailable: str
    release: str
    rules: tuple[Mapping[str, Any], ...]
    idempotency: Mapping[str, Any]

    @property
    def max_ttl(self) -> float:
        """The longest TTL of a lock."""
        return self.store.max_ttl

    def check_ttl(self, value: object, name: str = "ttl") -> float:
        """Return `value` in seconds if a lock of this alias can have that TTL; else ValueError."""
        ttl = duration(value, name, least=SHORTEST_TTL)
        self.store.check_ttl(ttl, name)
        return ttl


def load(alias: str) -> AliasSettings:
    """Read `settings.REDLOCK[alias]` as it is now.

    Raises InvalidRedlock with a message that names the alias and the key, says what to do,
    and contains no password.
    """
    # Raised outside of the except block: the frames and context of the first error contain URLs.
    try:
        return _read(alias, _section(alias))
    except _WholeError as error:
        problem = f"REDLOCK: {error}"
    except ValueError as error:
        problem = f"REDLOCK[{alias!r}]: {error}"
    raise InvalidRedlock(problem)


@cache
def check_installed() -> None:
    """Raise InvalidRedlock if the app is missing in INSTALLED_APPS."""
    if not apps.is_installed("redlock_django"):
        raise InvalidRedlock(
            "'redlock_django' is missing in INSTALLED_APPS, so the site has none of its system "
            "checks, commands and tables. Add it, and run 'manage.py migrate'"
        )


def check_installed_if_ready() -> None:
    """Call `check_installed` if Django has started: 'manage.py check' imports the URLconf then."""
    if apps.ready:
        check_installed()


def import_stores() -> None:
    """Import the stores of all aliases; what is wrong with one is an error when it is used."""
    import encodings.idna  # noqa: F401 - as the first look-up of a host's name does

    with suppress(AttributeError):  # not dicts
        for section in settings.REDLOCK.values():
            with suppress(Exception):
                _backend(section.get("BACKEND", DEFAULTS["BACKEND"]))


class _WholeError(ValueError):
    """An error of the whole setting rather than of one alias."""


def _section(alias: str) -> Mapping[str, Any]:
    redlock = getattr(settings, "REDLOCK", None)
    if redlock is None:
        raise _WholeError(
            "the setting is missing; write "
            "REDLOCK = {'default': {'MASTERS': ['redis://10.0.0.1:6379/0', ...]}}"
        )
    if not isinstance(redlock, Mapping):
        raise _WholeError(f"must be a dict of aliases, got {type(redlock).__name__}")
    if alias not in redlock:
        known = ", ".join(repr(name) for name in redlock) or "none"
        raise _WholeError(f"there is no alias {alias!r}; there is: {known}")
    section = redlock[alias]
    if not isinstance(section, Mapping):
        raise ValueError(f"must be a dict, got {type(section).__name__}")
    return section


def _read(alias: str, given: Mapping[str, Any]) -> AliasSettings:
    backend_class = _backend(given.get("BACKEND", DEFAULTS["BACKEND"]))
    known = {**backend_class.settings_class.DEFAULTS, **DEFAULTS}
    for key in OF_SERVERS:
        if key in given and key not in known:
            raise ValueError(
                f"{key} is for a Redis or Valkey server whose replica may take over, and BACKEND "
                f"is {given['BACKEND']!r}. Remove {key}, or remove BACKEND"
            )
    for key in given:
        if key not in known:
            raise ValueError(f"unknown key {key!r}{_of_other_store(key) or nearest(key, known)}")
    section = {**known, **given}
    found = AliasSettings(
        alias=alias,
        backend_class=backend_class,
        store=backend_class.settings_class.read(section),
        ttl=seconds(section, "TTL", least=SHORTEST_TTL),
        wait=seconds(section, "WAIT", least=0, most=LONGEST_WAIT),
        max_waiters=whole(section, "MAX_WAITERS", "threads"),
        max_hold=seconds(section, "MAX_HOLD"),
        status=choice(section["STATUS"], "STATUS", STATUSES),
        on_unavailable=choice(section["ON_UNAVAILABLE"], "ON_UNAVAILABLE", ("refuse", "proceed")),
        release=_release(section),
        rules=_rules(section),
        idempotency=mapping(section, "IDEMPOTENCY"),
    )
    found.check_ttl(found.ttl, "TTL")
    if found.max_hold < found.ttl:
        raise ValueError(
            f"MAX_HOLD ({found.max_hold:g} s) must not be less than TTL ({found.ttl:g} s)"
        )
    return found


def _of_other_store(key: str) -> str:
    """Return which store of this package has the key, and what to do; "" if none has it."""
    for path in STORES:
        with suppress(ImportError):  # its client library is not installed
            if key in import_string(path).settings_class.DEFAULTS:
                return f": it is a key of {path}. Remove {key}, or set BACKEND to that store"
    return ""


def _backend(path: object) -> type[BaseBackend]:
    if not isinstance(path, str):
        raise ValueError(f"BACKEND must be a dotted path, got {type(path).__name__}")
    try:
        backend = import_string(path)
    except ImportError as error:
        why = f"BACKEND {path!r} cannot be imported: {error}"
        raise ValueError(why if path in STORES else why + _meant(path)) from None
    if not (isinstance(backend, type) and issubclass(backend, BaseBackend)):
        raise ValueError(f"BACKEND {path!r} must be a subclass of {BaseBackend.__name__}")
    return backend


def _meant(path: str) -> str:
    """Return the store whose name or module is most like the end of a path, and all stores."""
    names = {store.rpartition(".")[2].lower(): store for store in STORES}
    names |= {store.split(".")[-2]: store for store in STORES}
    found = get_close_matches(path.rpartition(".")[2].lower(), names, n=1, cutoff=0.8)
    question = f", did you mean {names[found[0]]!r}?" if found else "."
    return f"{question} The stores are {', '.join(STORES)} (for tests)"


def _release(section: Mapping[str, Any]) -> str:
    release: object = section["RELEASE"]
    if not isinstance(release, str):
        raise ValueError(f"RELEASE must be a string, got {type(release).__name__}")
    if len(release) > LONGEST_RELEASE:
        raise ValueError(
            f"RELEASE must have at most {LONGEST_RELEASE} characters, because each lock carries "
            f"it, got {len(release)}: write a version or the beginning of a commit's hash"
        )
    return release


def _rules(section: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    rules = several(section, "RULES")
    for position, rule in enumerate(rules, 1):
        if not isinstance(rule, Mapping):
            raise ValueError(f"RULES: rule {position} must be a dict, got {type(rule).__name__}")
    return rules


def middleware_classes() -> Iterator[tuple[int, type]]:
    """Yield the classes in MIDDLEWARE, each with its index; what cannot be imported is left out."""
    for index, path in enumerate(settings.MIDDLEWARE):
        with suppress(ImportError, ImproperlyConfigured):
            middleware = import_string(path)
            if isinstance(middleware, type):
                yield index, middleware


_ON_TEMPLATES = "process_template_response"


@cache
def template_middleware() -> str:
    """Return the name of a middleware that has `process_template_response`, "" if none has.

    Django calls it after the view, so a response that was rendered in the view ignores it.
    """
    classes = (found for _, found in middleware_classes())
    names = (f"{c.__module__}.{c.__qualname__}" for c in classes if hasattr(c, _ON_TEMPLATES))
    return next(names, "")


def _settings_changed(*, setting: str, **_: Any) -> None:
    if setting == "MIDDLEWARE":
        template_middleware.cache_clear()


setting_changed.connect(_settings_changed, dispatch_uid="redlock_django.conf.settings")
