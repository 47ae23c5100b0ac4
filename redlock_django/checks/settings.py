"""Checks of `REDLOCK` and `MIDDLEWARE` that need nothing but the settings."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error

from redlock_django.backends.redis.masters import caches_on
from redlock_django.backends.redis.settings import RedlockSettings
from redlock_django.conf.settings import AliasSettings, load, middleware_classes
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.services import locks
from redlock_django.middleware import LockMiddleware
from redlock_django.web.rules import plan

_EXAMPLE = (
    'REDLOCK = {"default": {"MASTERS": ["redis://10.0.0.1:6379/0", "redis://10.0.0.2:6379/0", '
    '"redis://10.0.0.3:6379/0"]}}'
)

_SHARED = {
    "MASTERS": "members",
    "PROFILE": "failover",
    "MAX_TTL": "max_ttl",
    "MAX_CLOCK_SKEW": "max_clock_skew",
    "RESTART_DELAY": "restart_delay",
}
"""The settings that all clients of a master must share, and their attributes of `Deployment`."""


def check_settings(**_: Any) -> list[CheckMessage]:
    """Return the messages about REDLOCK and the place of LockMiddleware.

    E001: an invalid alias. E002: an invalid rule. E003: rules without LockMiddleware. E009: two
    aliases of which only one can use a master that both have. W005: a master in the database of a
    cache. W006: LockMiddleware before AuthenticationMiddleware. W016: no alias "default".
    """
    messages: list[CheckMessage] = []
    valid: list[AliasSettings] = []
    # An empty REDLOCK is reported as a missing "default".
    for alias in list(locks) or ["default"]:
        try:
            valid.append(load(alias))
        except InvalidRedlock as error:
            lacks_masters = "MASTERS" in str(error) and "BACKEND" not in str(error)
            hint = _EXAMPLE if lacks_masters or alias not in list(locks) else None
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
                id="redlock_django.W016",
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
    """Yield E009 for each alias that shares a master with an earlier one of other settings."""
    known: dict[Hashable, tuple[str, Deployment, str]] = {}
    for options in every:
        store = options.store
        if not isinstance(store, RedlockSettings) or not options.backend_class.is_shared:
            continue
        ours, reported = store.deployment, set[str]()
        for address in store.addresses:
            sentinels = tuple(sorted(str(one.endpoint) for one in address.sentinels))
            place = (address.store, sentinels, ours.prefix)
            alias, other, name = known.setdefault(place, (options.alias, ours, address.name))
            if other.fingerprint == ours.fingerprint or alias in reported:
                continue
            reported.add(alias)
            differ = [k for k, v in _SHARED.items() if getattr(ours, v) != getattr(other, v)]
            yield Error(
                f"REDLOCK[{options.alias!r}] and REDLOCK[{alias!r}] have the master {name} and "
                f"KEY_PREFIX {ours.prefix!r} in common, but not {', '.join(differ)}. A master "
                "belongs to one of them, and the other one acquires no lock.",
                hint="Use the same values for both, or another KEY_PREFIX for one of them, whose "
                "locks then exclude none of the other.",
                id="redlock_django.E009",
            )


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
