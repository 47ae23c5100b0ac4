"""`REDLOCK[alias]["IDEMPOTENCY"]` and the arguments of `idempotent(...)`, validated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from django.db import connections
from django.http import HttpRequest
from django.utils.module_loading import import_string

from redlock_django.backends.values import (
    LONGEST_RETENTION,
    LONGEST_WAIT,
    duration,
    flag,
    http_methods,
    string,
    whole,
)
from redlock_django.conf.arguments import ArgumentCheck
from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.fingerprint import has_posted_form, posted_form, read_for_view
from redlock_django.locking.services import locks
from redlock_django.web.request import header_of
from redlock_django.wire.servers.address import nearest

DAY = 24 * 3600
METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""The HTTP methods that may need a key; the others are idempotent without one."""


class KeySource(NamedTuple):
    """Where a request has the id that is its key: `header:webhook-id` or `get:event`."""

    source: str
    name: str

    def __str__(self) -> str:
        return f"{self.source}:{self.name}"


def _in_section(check: Callable[..., Any], *more: Any) -> ArgumentCheck:
    """Return the check of a value, made from one of a key in a section."""
    return lambda value, name: check({name: value}, name, *more)


def _tenant(value: object, name: str) -> Callable[..., Any]:
    if isinstance(value, str):
        try:
            value = import_string(value)
        except ImportError as error:
            raise ValueError(f"{name} {value!r} cannot be imported: {error}") from None
    if not callable(value):
        raise ValueError(f"{name} must be a callable (request, **kwargs), or its dotted path")
    return value


_string = _in_section(string)
_flag = _in_section(flag)

KEYS: Mapping[str, tuple[Any, ArgumentCheck]] = {
    "DATABASE": ("default", _string),
    "RETENTION": (DAY, partial(duration, least=1, most=LONGEST_RETENTION)),
    "HEADER": ("Idempotency-Key", _string),
    "FIELD": ("idempotency_key", _string),
    "METHODS": (("POST", "PATCH"), partial(http_methods, allowed=METHODS)),
    "REQUIRED": (False, _flag),
    "WAIT": (10, partial(duration, least=0, most=LONGEST_WAIT)),
    "MAX_RESPONSE_BYTES": (1024 * 1024, _in_section(whole, "bytes")),
    "TENANT": (None, _tenant),
}
"""Every key of `IDEMPOTENCY`, with its default and its check. None is allowed if it is the default.

The arguments of `idempotent` with the same name are checked by the same.
"""

DEFAULTS: Mapping[str, Any] = {key: default for key, (default, _) in KEYS.items()}


@dataclass(frozen=True, kw_only=True)
class IdempotencySettings:
    """The IDEMPOTENCY settings of one alias; durations are in seconds."""

    database: str
    retention: float
    header: str
    field: str
    methods: frozenset[str]
    required: bool
    wait: float
    max_response_bytes: int
    tenant: Callable[..., Any] | None

    def sent_header(self, request: HttpRequest) -> str | None:
        """Return the key in the header, as it was sent, or None."""
        return header_of(request, self.header)

    def key_in_form(self, request: HttpRequest) -> str | None:
        """Return the key in a posted form, or None; of several fields, the first one counts."""
        keys = posted_form(request).getlist(self.field)
        return str(keys[0]) if keys else None


_read: dict[str, tuple[Mapping[str, Any], IdempotencySettings]] = {}


def settings_of(alias: str) -> IdempotencySettings:
    """Return the current IDEMPOTENCY settings of an alias.

    Raises InvalidRedlock with a message that names the alias, the key and the fix.
    """
    alias_settings = locks[alias].settings
    cached = _read.get(alias)
    if cached is None or cached[0] is not alias_settings.idempotency:
        try:
            cached = _read[alias] = (
                alias_settings.idempotency,
                _settings(alias_settings.idempotency),
            )
        except ValueError as error:
            problem = f"REDLOCK[{alias!r}]: IDEMPOTENCY: {error}"
            raise InvalidRedlock(problem) from None
    return cached[1]


def _settings(given: Mapping[str, Any]) -> IdempotencySettings:
    for key in given:
        if key == "MAX_WAITERS":
            raise ValueError("MAX_WAITERS is a key of the alias: write it next to IDEMPOTENCY")
        if key not in KEYS:
            raise ValueError(f"unknown key {key!r}{nearest(str(key), KEYS)}")
    values: dict[str, Any] = {}
    for key, (default, check) in KEYS.items():
        value = given.get(key, default)
        values[key.lower()] = None if value is None and default is None else check(value, key)
    settings = IdempotencySettings(**values)
    if settings.database not in connections.settings:
        raise ValueError(f"DATABASE {settings.database!r} is not an alias of DATABASES")
    return settings


@dataclass(kw_only=True)
class IdempotentOptions:
    """The validated arguments of one `idempotent(...)`. `given` takes precedence over settings."""

    using: str
    given: dict[str, Any]
    key: KeySource | Callable[..., Any] | None
    """Where a request has its key; None for the header and the form field of the settings."""
    scope: str | Callable[..., Any] | None
    """The owner of all keys of the view; None for the user of the request."""
    anonymous_scope: Callable[..., Any] | None
    replay_check: Callable[..., Any] | None
    redact: Callable[..., Any] | None
    _merged: tuple[IdempotencySettings, IdempotencySettings] | None = None

    def settings(self) -> IdempotencySettings:
        """Return the current settings of the alias, with the arguments of the decorator."""
        current, merged = settings_of(self.using), self._merged
        if merged is None or merged[0] is not current:  # every request asks several times
            self._merged = merged = current, replace(current, **self.given)
        return merged[1]

    @property
    def reads_header(self) -> bool:
        """True if the header of the settings has the key; with `key`, another place may have it."""
        if self.key is None:
            return True
        if not isinstance(self.key, KeySource) or self.key.source != "header":
            return False
        return self.key.name.lower() == self.settings().header.lower()

    def wait(self, *, from_form: bool) -> float | None:
        """Return for how long a request waits while the first one with its key runs, or None.

        A key of a form waits, because its user sees one page only: the answer to the last click.
        """
        waits = from_form or "wait" in self.given
        return (self.settings().wait or None) if waits else None

    def may_have_key(self, request: HttpRequest) -> bool:
        """Return whether a request may have a key: in its header, its form or where `key` says."""
        settings = self.settings()
        if request.method not in settings.methods:
            return False
        has_place = self.key is not None or has_posted_form(request)
        return has_place or settings.sent_header(request) is not None

    def read_body(self, request: HttpRequest) -> None:
        """Read the body of a request that may have a key, so that it can be read again.

        For a framework whose parsers read the stream of the request before the view runs. Raises
        IdempotencyRefused for a body over DATA_UPLOAD_MAX_MEMORY_SIZE, BadRequest for a form that
        cannot be read, and InvalidRedlock if the body was read before.
        """
        if self.may_have_key(request):
            read_for_view(request)
