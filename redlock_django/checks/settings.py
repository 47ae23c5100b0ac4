"""Whether `REDLOCK` and `MIDDLEWARE` can work as they are, as far as they show it themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, register
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from redlock_django.conf.masters import caches_on, hosts
from redlock_django.conf.settings import AliasSettings, load
from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.settings import settings_of
from redlock_django.locking.handler import locks
from redlock_django.middleware import LockMiddleware
from redlock_django.web.rules import plan

TAG = "redlock"
_AUTHENTICATION = ".AuthenticationMiddleware"


@register(TAG)
def check_settings(**_: Any) -> list[CheckMessage]:
    """E001: an alias of REDLOCK is wrong. E002: a rule is. E003: rules without the middleware.

    W002 to W010: it can work, but hardly as it was meant.
    """
    messages: list[CheckMessage] = []
    known: list[AliasSettings] = []
    # Nothing at all is told as a missing "default" is.
    for alias in list(locks) or ["default"]:
        try:
            known.append(load(alias))
            settings_of(alias)
        except InvalidRedlock as error:
            messages.append(Error(str(error), id="redlock_django.E001"))
    if not messages and any(options.rules for options in known):
        messages += _rules()
    for options in known:
        messages += _masters(options)
        messages += _times(options)
    if known and "default" not in list(locks):
        messages.append(
            checks.Warning(
                "REDLOCK has no alias 'default', which everything uses that names none.",
                hint="Call one of them 'default', or give using= everywhere and silence this.",
                id="redlock_django.W010",
            )
        )
    return messages


def _rules() -> Iterator[CheckMessage]:
    try:
        plan()
    except InvalidRedlock as error:
        yield Error(str(error), id="redlock_django.E002")
    if not lock_middlewares():
        yield Error(
            "REDLOCK has RULES, but nothing puts them on.",
            hint="Add 'redlock_django.middleware.LockMiddleware' to MIDDLEWARE.",
            id="redlock_django.E003",
        )


def _masters(options: AliasSettings) -> Iterator[CheckMessage]:
    named = f"REDLOCK[{options.alias!r}]: MASTERS"
    number = len(options.groups[0])
    if number in (1, 2):
        failing = "it fails" if number == 1 else "one of them fails"
        yield checks.Warning(
            f"{named}: with {number} no lock can be taken while {failing}.",
            hint="Use three or five servers that know nothing of each other.",
            id="redlock_django.W002",
        )
    elif number and number % 2 == 0:
        yield checks.Warning(
            f"{named}: of {number} as few may fail as of {number - 1}.",
            hint="Use an odd number.",
            id="redlock_django.W003",
        )
    # Masters of different groups may share a machine: no resource has a majority on it.
    for host, names in (pair for group in options.groups for pair in hosts(group).items()):
        # A developer's own machine is told of by --deploy only.
        if host and len(names) > 1:
            yield one_host(options.alias, host, names)
    for address in options.addresses:
        for cache in caches_on(address):
            yield checks.Warning(
                f"{named}: {address.name} is the database of the cache {cache!r}, whose clear() "
                "deletes every lock in it.",
                hint="Give locks servers of their own, or at least a database of their own, and "
                "maxmemory-policy noeviction.",
                id="redlock_django.W005",
            )


def one_host(alias: str, host: str, names: list[str]) -> CheckMessage:
    """Say that several masters stand and fall with one machine."""
    return checks.Warning(
        f"REDLOCK[{alias!r}]: MASTERS: {', '.join(names)} are on one machine ({host}), and fail "
        "together.",
        hint="Put every master on a machine of its own.",
        id="redlock_django.W004",
    )


def _times(options: AliasSettings) -> Iterator[CheckMessage]:
    named = f"REDLOCK[{options.alias!r}]"
    longest = options.connect_timeout + 2 * options.master_timeout
    if options.ttl <= longest:
        yield checks.Warning(
            f"{named}: TTL ({options.ttl:g} s) may be over before a lock is taken: that takes up "
            f"to CONNECT_TIMEOUT + 2 x MASTER_TIMEOUT = {longest:g} s.",
            hint="Raise TTL, or lower CONNECT_TIMEOUT.",
            id="redlock_django.W008",
        )
    if options.renew and 3 * options.max_hold < 4 * options.ttl:
        yield checks.Warning(
            f"{named}: MAX_HOLD ({options.max_hold:g} s) ends a lock of TTL ({options.ttl:g} s) "
            "before its first renewal has done much.",
            hint="Raise MAX_HOLD to several times TTL, or set RENEW to False.",
            id="redlock_django.W009",
        )


@register(TAG)
def check_middleware(**_: Any) -> list[CheckMessage]:
    """W006: LockMiddleware stands before AuthenticationMiddleware. W007: it is there twice."""
    indexes = lock_middlewares()
    if not indexes:
        return []
    messages: list[CheckMessage] = []
    # By name: without its app it cannot even be imported.
    users = [n for n, path in enumerate(settings.MIDDLEWARE) if path.endswith(_AUTHENTICATION)]
    if users and indexes[0] < users[0]:
        messages.append(
            checks.Warning(
                "MIDDLEWARE: LockMiddleware stands before AuthenticationMiddleware.",
                hint="Put it behind, so that locks need not be kept until sessions are saved.",
                id="redlock_django.W006",
            )
        )
    if len(indexes) > 1:
        messages.append(
            checks.Warning(
                f"MIDDLEWARE: LockMiddleware is there {len(indexes)} times.",
                hint="Leave the one behind AuthenticationMiddleware.",
                id="redlock_django.W007",
            )
        )
    return messages


def lock_middlewares() -> list[int]:
    """Give where in MIDDLEWARE a LockMiddleware stands."""
    indexes = []
    for index, path in enumerate(settings.MIDDLEWARE):
        try:
            middleware = import_string(path)
        except (ImportError, ImproperlyConfigured):
            continue
        if isinstance(middleware, type) and issubclass(middleware, LockMiddleware):
            indexes.append(index)
    return indexes
