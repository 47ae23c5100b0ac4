"""Checks of `REDLOCK` and `MIDDLEWARE` that need nothing but the settings."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error

from redlock_django.backends.redlock.masters import caches_on
from redlock_django.backends.redlock.settings import RedlockSettings
from redlock_django.conf.settings import AliasSettings, load, middleware_classes
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.services import locks
from redlock_django.middleware import LockMiddleware
from redlock_django.web.rules import plan

_EXAMPLE = (
    'REDLOCK = {"default": {"MASTERS": ["redis://10.0.0.1:6379/0", "redis://10.0.0.2:6379/0", '
    '"redis://10.0.0.3:6379/0"]}}'
)

_NUMBERS = {
    "profile": "PROFILE",
    "ttl": "MAX_TTL",
    "skew": "MAX_CLOCK_SKEW",
    "delay": "RESTART_DELAY",
}
"""The setting behind each number of a fingerprint; the others follow from MASTERS."""


def check_settings(**_: Any) -> list[CheckMessage]:
    """Return the messages about REDLOCK and the place of LockMiddleware.

    E001: an invalid alias. E002: an invalid rule. E003: rules without LockMiddleware. E058: two
    aliases of which only one can use a master that both have. W005: a master in the database of a
    cache. W006: LockMiddleware before AuthenticationMiddleware. W010: no alias "default".
    """
    messages: list[CheckMessage] = []
    valid: list[AliasSettings] = []
    # An empty REDLOCK is reported as a missing "default".
    for alias in list(locks) or ["default"]:
        try:
            valid.append(load(alias))
        except InvalidRedlock as error:
            hint = _EXAMPLE if "MASTERS" in str(error) or alias not in list(locks) else None
            messages.append(Error(str(error), hint=hint, id="redlock_django.E001"))
    lock_middleware = [n for n, one in middleware_classes() if issubclass(one, LockMiddleware)]
    if not messages and any(options.rules for options in valid):
        messages += _rules(has_middleware=bool(lock_middleware))
    messages += _other_deployments(valid)
    for options in valid:
        messages += _shared_with_caches(options)
    if valid and "default" not in list(locks):
        messages.append(
            checks.Warning(
                "REDLOCK has no alias 'default', which is used wherever no alias is named.",
                hint="Rename an alias to 'default', or pass using= everywhere and silence this "
                "check.",
                id="redlock_django.W010",
            )
        )
    # Compared by name: AuthenticationMiddleware cannot be imported without its app.
    paths = enumerate(settings.MIDDLEWARE)
    users = [n for n, path in paths if path.endswith(".AuthenticationMiddleware")]
    if lock_middleware and users and lock_middleware[0] < users[0]:
        messages.append(
            checks.Warning(
                "MIDDLEWARE: LockMiddleware is listed before AuthenticationMiddleware.",
                hint="Move it after AuthenticationMiddleware, so that locks are not held until "
                "sessions are saved.",
                id="redlock_django.W006",
            )
        )
    return messages


def _rules(*, has_middleware: bool) -> Iterator[CheckMessage]:
    try:
        plan()
    except InvalidRedlock as error:
        yield Error(str(error), id="redlock_django.E002")
    if not has_middleware:
        yield Error(
            "LockMiddleware is not installed, so RULES in REDLOCK have no effect.",
            hint="Add 'redlock_django.middleware.LockMiddleware' to MIDDLEWARE after "
            "AuthenticationMiddleware.",
            id="redlock_django.E003",
        )


def _other_deployments(every: Sequence[AliasSettings]) -> Iterator[CheckMessage]:
    """Yield E058 for each alias that shares a master with an earlier one of other settings."""
    known: dict[Hashable, tuple[AliasSettings, str, str]] = {}
    for options in every:
        store = options.store
        if not isinstance(store, RedlockSettings) or not options.backend_class.is_shared:
            continue
        reported: set[str] = set()
        prefix, fingerprint = store.key_prefix, store.deployment.fingerprint
        for address in store.addresses:
            sentinels = tuple(sorted(str(one.endpoint) for one in address.sentinels))
            place = (address.store, sentinels, prefix)
            first, other, name = known.setdefault(place, (options, fingerprint, address.name))
            if other != fingerprint and first.alias not in reported:
                reported.add(first.alias)
                yield Error(
                    f"REDLOCK[{options.alias!r}] and REDLOCK[{first.alias!r}] have the master "
                    f"{name} and KEY_PREFIX {prefix!r} in common, but not "
                    f"{_differences(fingerprint, other)}. A master belongs to one of them, and "
                    "the other one acquires no lock.",
                    hint="Use the same values for both, or another KEY_PREFIX for one of them, "
                    "whose locks then exclude none of the other.",
                    id="redlock_django.E058",
                )


def _differences(one: str, other: str) -> str:
    """Return the settings in which two fingerprints differ."""
    numbers, others = (dict(re.findall(r"(\w+)=(\w+)", each)) for each in (one, other))
    names = {
        _NUMBERS.get(key, "MASTERS")
        for key in numbers.keys() | others
        if numbers.get(key) != others.get(key)
    }
    return ", ".join(sorted(names))


def _shared_with_caches(options: AliasSettings) -> Iterator[CheckMessage]:
    if not isinstance(options.store, RedlockSettings):
        return
    for address in options.store.addresses:
        for cache in caches_on(address):
            yield checks.Warning(
                f"REDLOCK[{options.alias!r}]: MASTERS: {address.name} is also the database of the "
                f"cache {cache!r}. Clearing the cache deletes every lock in it.",
                hint="Use separate servers for locks, or at least a separate database, with "
                "maxmemory-policy noeviction.",
                id="redlock_django.W005",
            )
