"""`settings.REDLOCK`: read late, checked whole, one frozen `AliasSettings` for each alias."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from redlock_django.backends.base import BaseBackend
from redlock_django.backends.redis import RedisBackend
from redlock_django.conf.masters import Groups, read_masters
from redlock_django.conf.values import SHORTEST_TTL, duration, flag, mapping, one_of, several
from redlock_django.exceptions import InvalidRedlock
from redlock_django.wire.address import Address, nearest

STATUSES = (409, 423, 429, 503)
"""The HTTP statuses a held lock may be answered with."""

TOLERABLE = ("eviction", "replica")
"""The server faults a site may ask to be warned of instead of refused for."""

DEFAULTS: Mapping[str, Any] = {
    "BACKEND": "redlock_django.backends.redis.RedisBackend",
    "MASTERS": (),
    "OPTIONS": {},
    "TTL": 10,
    "WAIT": 0,
    "RENEW": True,
    "MAX_HOLD": 300,
    "MASTER_TIMEOUT": 0.25,
    "CONNECT_TIMEOUT": 1.0,
    "MAX_TTL": 60,
    "MAX_CLOCK_SKEW": 0.5,
    "RESTART_DELAY": "auto",
    "KEY_PREFIX": "redlock",
    "FENCE_TTL": 600,
    "STATUS": 423,
    "ON_UNAVAILABLE": "refuse",
    "TOLERATE": (),
    "RULES": (),
    "IDEMPOTENCY": {},
}
"""Every key of `REDLOCK[alias]` with what it is when left out."""


@dataclass(frozen=True, kw_only=True)
class AliasSettings:
    """What one alias of `settings.REDLOCK` says, checked and complete; durations in seconds."""

    alias: str
    backend: str
    groups: Groups
    addresses: tuple[Address, ...]
    ttl: float
    wait: float
    renew: bool
    max_hold: float
    master_timeout: float
    connect_timeout: float
    max_ttl: float
    max_clock_skew: float
    restart_delay: float
    key_prefix: str
    fence_ttl: float
    status: int
    on_unavailable: str
    tolerate: frozenset[str]
    rules: tuple[Mapping[str, Any], ...]
    idempotency: Mapping[str, Any]

    def check_ttl(self, value: object, name: str = "ttl") -> float:
        """Give `value` in seconds if this alias can hold a lock that long; else ValueError."""
        ttl = duration(value, name, least=SHORTEST_TTL)
        if ttl > self.max_ttl:
            raise ValueError(
                f"{name} is {ttl:g} s and MAX_TTL is {self.max_ttl:g} s: "
                f"lower {name} or raise MAX_TTL"
            )
        if self.master_timeout * 2 >= ttl:
            raise ValueError(
                f"{name} ({ttl:g} s) must be more than twice "
                f"MASTER_TIMEOUT ({self.master_timeout:g} s)"
            )
        return ttl

    def check_wait(self, value: object, name: str = "wait") -> float:
        """Give `value` in seconds, 0 for not waiting; ValueError for what is no duration."""
        return duration(value, name, least=0)


def load(alias: str) -> AliasSettings:
    """Read `settings.REDLOCK[alias]` as it is now.

    Raises InvalidRedlock with a text that names the alias and the key, says what to do,
    and holds no password.
    """
    # Raised outside of the except block: the frames and the context of the first error hold URLs.
    try:
        return _options(alias, _section(alias))
    except _WholeError as error:
        problem = f"REDLOCK: {error}"
    except ValueError as error:
        problem = f"REDLOCK[{alias!r}]: {error}"
    raise InvalidRedlock(problem)


class _WholeError(ValueError):
    """A fault of the whole setting rather than of one alias."""


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
    for key in section:
        if key not in DEFAULTS:
            raise ValueError(f"unknown key {key!r}{nearest(key, DEFAULTS)}")
    return {**DEFAULTS, **section}


def _options(alias: str, section: Mapping[str, Any]) -> AliasSettings:
    def seconds(key: str, least: float = 0.001) -> float:
        return duration(section[key], key, least=least)

    backend = _backend(section["BACKEND"])
    groups = read_masters(section["MASTERS"], mapping(section, "OPTIONS"))
    if issubclass(backend, RedisBackend) and not groups[0]:
        raise ValueError("MASTERS must name at least one master: ['redis://10.0.0.1:6379/0', ...]")
    max_ttl = seconds("MAX_TTL", SHORTEST_TTL)
    skew = seconds("MAX_CLOCK_SKEW")
    # How long a forgotten lock lives: clocks run 1 % apart and may step; 50 ms for the way.
    forgotten = 1.02 * max_ttl + 5 * skew
    if section["RESTART_DELAY"] == "auto":
        restart_delay = forgotten + 0.05 if len(groups[0]) >= 3 else 0.0
    elif isinstance(section["RESTART_DELAY"], str):
        raise ValueError("RESTART_DELAY must be 'auto' or a number of seconds (0 = off)")
    else:
        restart_delay = seconds("RESTART_DELAY", 0)
    fence_ttl = seconds("FENCE_TTL")
    if fence_ttl < forgotten:
        raise ValueError(
            f"FENCE_TTL must be at least 1.02 x MAX_TTL + 5 x MAX_CLOCK_SKEW = {forgotten:g} s, "
            f"got {fence_ttl:g}"
        )
    options = AliasSettings(
        alias=alias,
        backend=section["BACKEND"],
        groups=groups,
        addresses=sum(groups, ()),
        ttl=seconds("TTL", SHORTEST_TTL),
        wait=seconds("WAIT", 0),
        renew=flag(section, "RENEW"),
        max_hold=seconds("MAX_HOLD"),
        master_timeout=seconds("MASTER_TIMEOUT"),
        connect_timeout=seconds("CONNECT_TIMEOUT"),
        max_ttl=max_ttl,
        max_clock_skew=skew,
        restart_delay=restart_delay,
        key_prefix=_prefix(section),
        fence_ttl=fence_ttl,
        status=one_of(section, "STATUS", STATUSES),
        on_unavailable=one_of(section, "ON_UNAVAILABLE", ("refuse", "proceed")),
        tolerate=_tolerate(section),
        rules=_rules(section),
        idempotency=mapping(section, "IDEMPOTENCY"),
    )
    options.check_ttl(options.ttl, "TTL")
    if options.max_hold < options.ttl:
        raise ValueError(
            f"MAX_HOLD ({options.max_hold:g} s) must not be less than TTL ({options.ttl:g} s)"
        )
    return options


def _backend(path: object) -> type[BaseBackend]:
    if not isinstance(path, str):
        raise ValueError(f"BACKEND must be a dotted path, got {type(path).__name__}")
    try:
        backend = import_string(path)
    except ImportError as error:
        raise ValueError(f"BACKEND {path!r} cannot be imported: {error}") from None
    if not (isinstance(backend, type) and issubclass(backend, BaseBackend)):
        raise ValueError(f"BACKEND {path!r} must be a subclass of {BaseBackend.__name__}")
    return backend


def _tolerate(section: Mapping[str, Any]) -> frozenset[str]:
    faults = several(section, "TOLERATE")
    for fault in faults:
        if fault not in TOLERABLE:
            raise ValueError(
                f"TOLERATE may hold {', '.join(map(repr, TOLERABLE))}, "
                f"got {fault!r}{nearest(fault, TOLERABLE)}"
            )
    return frozenset(faults)


def _prefix(section: Mapping[str, Any]) -> str:
    prefix = section["KEY_PREFIX"]
    if not isinstance(prefix, str) or not prefix:
        raise ValueError("KEY_PREFIX must be a text that is not empty")
    if not prefix.isprintable() or re.search(r"[\s{}*?\[\]\\^]", prefix):
        raise ValueError(
            "KEY_PREFIX must hold no space, control character, brace or glob character, "
            f"got {prefix!r}"
        )
    return prefix


def _rules(section: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    rules = several(section, "RULES")
    for position, rule in enumerate(rules, 1):
        if not isinstance(rule, Mapping):
            raise ValueError(f"RULES: rule {position} must be a dict, got {type(rule).__name__}")
    return rules
