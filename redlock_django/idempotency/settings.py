"""`REDLOCK[alias]["IDEMPOTENCY"]` and the arguments of `idempotent(...)`, validated."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.core.cache import caches
from django.db import connections
from django.http import HttpRequest
from django.utils.module_loading import import_string

from redlock_django.backends.values import (
    LONGEST_RETENTION,
    LONGEST_WAIT,
    choice,
    duration,
    flag,
    http_methods,
    string,
    whole,
)
from redlock_django.conf.settings import ON_DISCONNECT
from redlock_django.exceptions import InvalidRedlock, RequestTooLarge
from redlock_django.idempotency.fingerprint import has_posted_form, posted_form, read_whole_body
from redlock_django.idempotency.stores.base import Store
from redlock_django.idempotency.stores.cache import CacheStore
from redlock_django.idempotency.stores.database import DatabaseStore
from redlock_django.idempotency.stores.encryption import ResponseCipher
from redlock_django.idempotency.stores.response import KEPT_HEADERS, NEVER_KEPT
from redlock_django.locking.services import locks
from redlock_django.web.answers import PROBLEM_BASE
from redlock_django.wire.servers.address import nearest

DAY = 24 * 3600
METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""The HTTP methods that may need a key; the others are idempotent without one."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "store": ("database", "cache"),
    "in_flight": ("auto", "conflict", "wait"),
    "on_expired": ("reject", "run"),
    "on_5xx": ("forget", "record"),
    "on_disconnect": ON_DISCONNECT,
    "on_unscoped": ("reject", "ignore"),
}
"""The allowed values of some settings, and of the arguments with the same name."""

DEFAULTS: Mapping[str, Any] = {
    "STORE": "database",
    "DATABASE": "default",
    "CACHE": "default",
    "RETENTION": DAY,
    "TOMBSTONE_RETENTION": 30 * DAY,
    "HEADER": "Idempotency-Key",
    "FIELD": "idempotency_key",
    "METHODS": ("POST", "PATCH"),
    "REQUIRED": False,
    "IN_FLIGHT": "auto",
    "WAIT": 10,
    "MAX_RECORDS": None,
    "MAX_RECORDS_WINDOW": 3600,
    "STORE_BODY": True,
    "MAX_RESPONSE_BYTES": 1024 * 1024,
    "MAX_REQUEST_BYTES": None,
    "KEY_PATTERN": None,
    "SECRETS": None,
    "ENCRYPTION_KEYS": None,
    "KEEP_HEADERS": (),
    "ON_EXPIRED": "reject",
    "ON_5XX": "forget",
    "ON_DISCONNECT": "finish",
    "ON_UNSCOPED": "reject",
    "TENANT": None,
    "PROBLEM_BASE": PROBLEM_BASE,
}
"""Every key of `IDEMPOTENCY` with its default."""


@dataclass(frozen=True, kw_only=True)
class IdempotencySettings:
    """The IDEMPOTENCY settings of one alias; durations are in seconds."""

    store: str
    database: str
    cache: str
    retention: float
    tombstone_retention: float
    header: str
    field: str
    methods: frozenset[str]
    required: bool
    in_flight: str
    wait: float
    max_records: int | None
    max_records_window: float
    store_body: bool
    max_response_bytes: int
    max_request_bytes: int | None
    key_pattern: re.Pattern[str] | None
    secrets: tuple[str, ...] | None = dataclasses.field(repr=False)
    encryption_keys: ResponseCipher | None
    keep_headers: frozenset[str]
    on_expired: str
    on_5xx: str
    on_disconnect: str
    on_unscoped: str
    tenant: Callable[..., Any] | None
    problem_base: str

    # The key of a request is in one of these places, and `flow.claim` reads it.

    def may_have_key(self, request: HttpRequest) -> bool:
        """Return whether a request has a key in its header, or a form that may contain one."""
        if request.method not in self.methods:
            return False
        return self.header in request.headers or has_posted_form(request)

    def key_in_form(self, request: HttpRequest) -> str | None:
        """Return the key in a posted form, or None.

        Each form of a page has a field of its own: the forms of a formset, two in one <form>. They
        are sent together, so the first key stands for all.
        """
        keys = posted_form(request).getlist(self.field)
        return str(keys[0]) if keys else None


_read: dict[str, tuple[Mapping[str, Any], IdempotencySettings]] = {}


def settings_of(alias: str) -> IdempotencySettings:
    """Return the current IDEMPOTENCY settings of an alias.

    Raises InvalidRedlock with a message that names the alias, the key and the fix.
    """
    alias_settings = locks[alias].settings  # no local variable of this frame shows SECRETS
    cached = _read.get(alias)
    if cached is None or cached[0] is not alias_settings.idempotency:
        try:
            cached = _read[alias] = (
                alias_settings.idempotency,
                _settings(alias_settings.idempotency),
            )
        except ValueError as error:
            problem = f"REDLOCK[{alias!r}]: IDEMPOTENCY: {error}"
            cached = None
            raise InvalidRedlock(problem) from None
    return cached[1]


def _settings(given: Mapping[str, Any]) -> IdempotencySettings:
    for key in given:
        if key == "MAX_WAITERS":
            raise ValueError("MAX_WAITERS is a key of the alias: write it next to IDEMPOTENCY")
        if key not in DEFAULTS:
            raise ValueError(f"unknown key {key!r}{nearest(str(key), DEFAULTS)}")
    section = {**DEFAULTS, **given}
    database, cache = string(section, "DATABASE"), string(section, "CACHE")
    if choice(section["STORE"], "STORE", CHOICES["store"]) == "database":
        if database not in connections.settings:
            raise ValueError(f"DATABASE {database!r} is not an alias of DATABASES")
    elif cache not in caches.settings:
        raise ValueError(f"CACHE {cache!r} is not an alias of CACHES")
    return IdempotencySettings(
        store=section["STORE"],
        database=database,
        cache=cache,
        retention=duration(section["RETENTION"], "RETENTION", least=1, most=LONGEST_RETENTION),
        tombstone_retention=duration(
            section["TOMBSTONE_RETENTION"],
            "TOMBSTONE_RETENTION",
            least=0,
            most=LONGEST_RETENTION,
        ),
        header=string(section, "HEADER"),
        field=string(section, "FIELD"),
        methods=http_methods(section["METHODS"], "METHODS", METHODS),
        required=flag(section, "REQUIRED"),
        in_flight=choice(section["IN_FLIGHT"], "IN_FLIGHT", CHOICES["in_flight"]),
        wait=duration(section["WAIT"], "WAIT", least=0, most=LONGEST_WAIT),
        max_records=_whole_or_none(section, "MAX_RECORDS", "records", least=1),
        max_records_window=duration(section["MAX_RECORDS_WINDOW"], "MAX_RECORDS_WINDOW", least=1),
        store_body=flag(section, "STORE_BODY"),
        max_response_bytes=whole(section, "MAX_RESPONSE_BYTES", "bytes"),
        max_request_bytes=_whole_or_none(section, "MAX_REQUEST_BYTES", "bytes"),
        key_pattern=_pattern(section),
        secrets=_secrets(section),
        encryption_keys=(
            None
            if section["ENCRYPTION_KEYS"] is None
            else ResponseCipher(section["ENCRYPTION_KEYS"])
        ),
        keep_headers=_headers(section),
        on_expired=choice(section["ON_EXPIRED"], "ON_EXPIRED", CHOICES["on_expired"]),
        on_5xx=choice(section["ON_5XX"], "ON_5XX", CHOICES["on_5xx"]),
        on_disconnect=choice(section["ON_DISCONNECT"], "ON_DISCONNECT", CHOICES["on_disconnect"]),
        on_unscoped=choice(section["ON_UNSCOPED"], "ON_UNSCOPED", CHOICES["on_unscoped"]),
        tenant=_tenant(section),
        problem_base=string(section, "PROBLEM_BASE"),
    )


def _whole_or_none(section: Mapping[str, Any], key: str, unit: str, least: int = 0) -> int | None:
    return None if section[key] is None else whole(section, key, unit, least)


def _pattern(section: Mapping[str, Any]) -> re.Pattern[str] | None:
    value = section["KEY_PATTERN"]
    try:
        return None if value is None else re.compile(value)
    except (re.error, TypeError) as error:
        raise ValueError(f"KEY_PATTERN is not a regular expression: {error}") from None


def _secrets(section: Mapping[str, Any]) -> tuple[str, ...] | None:
    value = section["SECRETS"]
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not value or not all(map(_is_secret, value)):
        # Without the value, which is secret.
        raise ValueError("SECRETS must be a list of strings that are not empty")
    return tuple(value)


def _is_secret(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _headers(section: Mapping[str, Any]) -> frozenset[str]:
    value = section["KEEP_HEADERS"]
    if isinstance(value, str) or not isinstance(value, Collection):
        raise ValueError("KEEP_HEADERS must be a list of header names")
    added = frozenset(str(name).lower() for name in value)
    if never := sorted(added & NEVER_KEPT):
        raise ValueError(f"KEEP_HEADERS must not contain {never[0]!r}, which must not be replayed")
    return KEPT_HEADERS | added


def _tenant(section: Mapping[str, Any]) -> Callable[..., Any] | None:
    value = section["TENANT"]
    if isinstance(value, str):
        try:
            value = import_string(value)
        except ImportError as error:
            raise ValueError(f"TENANT {value!r} cannot be imported: {error}") from None
    if value is not None and not callable(value):
        raise ValueError("TENANT must be a callable (request, **kwargs), or its dotted path")
    return value  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class IdempotentOptions:
    """The validated arguments of one `idempotent(...)`. `given` takes precedence over settings."""

    using: str
    given: dict[str, Any]
    anonymous_scope: Callable[..., Any] | None
    replay_check: Callable[..., Any] | None
    redact: Callable[..., Any] | None
    canonical_json: bool
    ignore: tuple[str, ...]

    def settings(self) -> IdempotencySettings:
        """Return the current settings of the alias, with the arguments of the decorator."""
        return replace(settings_of(self.using), **self.given)

    def read_body(self, request: HttpRequest) -> None:
        """Read the body of a request that may have a key, so that it can be read again.

        For a framework whose parsers read the stream of the request before the view runs. Raises
        RequestTooLarge for a body over DATA_UPLOAD_MAX_MEMORY_SIZE, BadRequest for a form that
        cannot be read, and InvalidRedlock if the body was read before.
        """
        settings = self.settings()
        if settings.may_have_key(request):
            try:
                posted_form(request) if has_posted_form(request) else read_whole_body(request)
            except RequestTooLarge as error:
                error.problem_base = settings.problem_base
                raise


def store_of(settings: IdempotencySettings) -> Store:
    """Return the store that the settings name."""
    retention = timedelta(seconds=settings.retention)
    cipher = settings.encryption_keys
    if settings.store == "database":
        return DatabaseStore(settings.database, retention=retention, cipher=cipher)
    tombstone = timedelta(seconds=settings.tombstone_retention)
    return CacheStore(
        settings.cache, retention=retention, tombstone_retention=tombstone, cipher=cipher
    )
