"""Checks of `REDLOCK` and `MIDDLEWARE` that need nothing but the settings."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from django.core import checks
from django.core.checks import CheckMessage, Error

from redlock_django.backends.redlock.masters import caches_on, hosts
from redlock_django.backends.redlock.settings import RedlockSettings
from redlock_django.conf.settings import AliasSettings, load, lock_middlewares
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.services import locks
from redlock_django.web.rules import plan
from redlock_django.wire.servers.address import Address

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
    """Return E001 (invalid alias), E002 (invalid rule) and E003 (rules without LockMiddleware).

    E058 is returned for two aliases of which only one can use a master that both have.

    W002 to W010 are returned for settings that are valid but probably not intended.
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
    if not messages and any(options.rules for options in valid):
        messages += _rules()
    messages += _other_deployments(valid)
    for options in valid:
        messages += _masters(options)
        messages += _times(options)
    if valid and "default" not in list(locks):
        messages.append(
            checks.Warning(
                "REDLOCK has no alias 'default', which is used wherever no alias is named.",
                hint="Rename an alias to 'default', or pass using= everywhere and silence this "
                "check.",
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


def _masters(options: AliasSettings) -> Iterator[CheckMessage]:
    """Yield W002 to W005 about the number of masters, their machines and their databases."""
    store = options.store
    if not isinstance(store, RedlockSettings):
        return
    named = f"REDLOCK[{options.alias!r}]: MASTERS"
    if not store.failover:  # W050 is about that
        yield from _number_of_masters(named, len(store.addresses))
    for host, names in hosts(store.addresses).items():
        # Masters on the local machine are reported by --deploy only.
        if host and len(names) > 1:
            yield same_host_warning(options.alias, host, names)
    for address in store.addresses:
        yield from _shared_with_caches(named, address)


def _number_of_masters(named: str, number: int) -> Iterator[CheckMessage]:
    if number in (1, 2):
        failing = "it is down" if number == 1 else "one of them is down"
        count = "one master" if number == 1 else "two masters"
        hint = "Use three or five independent servers."
        if number == 1:
            hint += " If a replica may take its place, set PROFILE to 'failover'."
        yield checks.Warning(
            f"{named}: with {count}, no lock can be acquired while {failing}.",
            hint=hint,
            id="redlock_django.W002",
        )
    elif number and number % 2 == 0:
        yield checks.Warning(
            f"{named}: {number} masters tolerate no more failures than {number - 1} do.",
            hint="Use an odd number of masters.",
            id="redlock_django.W003",
        )


def _shared_with_caches(named: str, address: Address) -> Iterator[CheckMessage]:
    for cache in caches_on(address):
        yield checks.Warning(
            f"{named}: {address.name} is also the database of the cache {cache!r}. Clearing the "
            "cache deletes every lock in it.",
            hint="Use separate servers for locks, or at least a separate database, with "
            "maxmemory-policy noeviction.",
            id="redlock_django.W005",
        )


def same_host_warning(alias: str, host: str, names: list[str]) -> CheckMessage:
    """Return W004: the masters `names` are all on the machine `host`."""
    return checks.Warning(
        f"REDLOCK[{alias!r}]: MASTERS: {', '.join(names)} are on one machine ({host}), so they "
        "fail together.",
        hint="Run every master on a separate machine.",
        id="redlock_django.W004",
    )


def _times(options: AliasSettings) -> Iterator[CheckMessage]:
    named = f"REDLOCK[{options.alias!r}]"
    store, longest = options.store, 0.0
    if isinstance(store, RedlockSettings):
        longest = store.connect_timeout + 2 * store.master_timeout
    if options.ttl <= longest:
        yield checks.Warning(
            f"{named}: TTL ({options.ttl:g} s) may expire before a lock is acquired, which can "
            f"take up to CONNECT_TIMEOUT + 2 x MASTER_TIMEOUT = {longest:g} s.",
            hint="Raise TTL, or lower CONNECT_TIMEOUT.",
            id="redlock_django.W008",
        )
    if 3 * options.max_hold < 4 * options.ttl:
        yield checks.Warning(
            f"{named}: MAX_HOLD ({options.max_hold:g} s) is so close to TTL ({options.ttl:g} s) "
            "that renewal hardly prolongs a lock.",
            hint="Raise MAX_HOLD to several times TTL.",
            id="redlock_django.W009",
        )
