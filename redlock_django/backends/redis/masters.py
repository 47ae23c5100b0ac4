"""Read MASTERS: URLs or cache aliases, as the addresses of different servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from redlock_django.wire.servers.address import Address, nearest, options_of

_CACHE_CLASSES = {
    "django_redis.cache.RedisCache",
    "django.core.cache.backends.redis.RedisCache",
}


def read_masters(
    masters: object,
    options: Mapping[str, Any],
    sentinels: Sequence[Address] = (),
) -> tuple[Address, ...]:
    """Return the address of every entry of MASTERS, in order; `options` apply to each.

    `masters` is a list or a comma-separated string of URLs and `cache:<alias>` names; with
    `sentinels`, the URLs name services. Raises ValueError with a message that names the position
    of the entry and contains no password.
    """
    if not isinstance(masters, str | list | tuple):
        raise ValueError(
            "MASTERS must be a list of URLs or one comma-separated string, "
            f"got {type(masters).__name__}"
        )
    read = partial(_address, options=options, sentinels=sentinels)
    addresses = _read_each("MASTERS: master", entries_of(masters), read)
    _refuse_twins(addresses)
    return addresses


def read_sentinels(sentinels: Sequence[object], options: Mapping[str, Any]) -> tuple[Address, ...]:
    """Return the address of every entry of SENTINELS. Raises ValueError as `read_masters` does."""
    read = partial(Address.of_sentinel, options=options)
    return _read_each("SENTINELS: Sentinel", sentinels, read)


def _read_each(
    what: str, entries: Sequence[Any], read: Callable[[Any], Address]
) -> tuple[Address, ...]:
    """Return the address of each entry; name its position in the error if it has none."""
    addresses = []
    for number, entry in enumerate(entries, 1):
        try:
            addresses.append(read(entry))
        except ValueError as error:
            raise ValueError(f"{what} {number}: {error}") from None
    return tuple(addresses)


def entries_of(masters: object) -> list[Any]:
    """Return the entries of MASTERS or SENTINELS, as they are written; [] if it has none."""
    if isinstance(masters, str):
        masters = [part for part in (part.strip() for part in masters.split(",")) if part]
    return list(masters) if isinstance(masters, list | tuple) else []


def _refuse_twins(addresses: Sequence[Address]) -> None:
    """Raise ValueError if two masters are one server."""
    seen: dict[Hashable, tuple[int, str]] = {}
    for number, address in enumerate(addresses, 1):
        if address.endpoint in seen:
            first, name = seen[address.endpoint]
            raise ValueError(
                f"MASTERS: masters {first} and {number} are one server ({name} and "
                f"{address.name}); every master must be a server of its own"
            )
        seen[address.endpoint] = (number, address.name)


def _address(master: Any, options: Mapping[str, Any], sentinels: Sequence[Address]) -> Address:
    if sentinels:
        return Address.of_service(master, options, sentinels)
    if isinstance(master, str) and master.startswith("cache:"):
        url, of_cache = _cache(master.removeprefix("cache:"))
        return Address.from_url(url, {**of_cache, **options})
    return Address.from_url(master, options)  # which refuses what is not a string


def _cache(alias: str) -> tuple[str, dict[str, Any]]:
    """Return the URL and connection options of a cache. Its pool is not used: other timeouts."""
    caches: Mapping[str, Mapping[str, Any]] = settings.CACHES
    if alias not in caches:
        raise ValueError(f"there is no cache {alias!r} in CACHES{nearest(alias, caches)}")
    config = caches[alias]
    try:
        is_redis = _is_redis(config)
    except ImportError as error:
        raise ValueError(f"cache {alias!r}: its BACKEND cannot be imported: {error}") from None
    if not is_redis:
        raise ValueError(
            f"cache {alias!r} is not a Redis cache (its BACKEND is {config.get('BACKEND', '')!r})"
        )
    location, options = _locations(config)
    if len(location) != 1:
        raise ValueError(
            f"cache {alias!r} has {len(location)} LOCATIONs, which are a primary and its replicas, "
            "not masters; list each master by itself"
        )
    if "SENTINELS" in (config.get("OPTIONS") or {}):
        raise ValueError(
            f"cache {alias!r} is behind Sentinel; name the masters' own addresses, or set PROFILE "
            "to 'failover' and SENTINELS, and name the service: redis://NAME/0"
        )
    return location[0], options


def caches_on(address: Address) -> list[str]:
    """Return the cache aliases whose `clear()` empties the database of this master."""
    found = []
    for alias, config in settings.CACHES.items():
        with suppress(ImportError):  # an error of the cache, not of REDLOCK
            if _is_redis(config) and address.store in _databases(config):
                found.append(alias)
    return found


def host_of(address: Address) -> str:
    """Return the host of a master; "" for this machine (a loopback address or a socket)."""
    host = str(address.endpoint[0]) if isinstance(address.endpoint, tuple) else ""
    return "" if host == "::1" or host.startswith("127.") else host


def _is_redis(config: Mapping[str, Any]) -> bool:
    """Return whether a cache is in Redis; raise ImportError if its BACKEND cannot be imported."""
    lineage = getattr(import_string(str(config.get("BACKEND", ""))), "__mro__", ())
    return any(f"{cls.__module__}.{cls.__qualname__}" in _CACHE_CLASSES for cls in lineage)


def _locations(config: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the URLs of a Redis cache, and its options that concern connections."""
    location = config.get("LOCATION") or ()
    if isinstance(location, str):
        location = re.split("[;,]", location)
    given: Mapping[str, Any] = config.get("OPTIONS") or {}
    upper = ("USERNAME", "PASSWORD")
    merged = {
        **given,
        **{name.lower(): given[name] for name in upper if given.get(name)},
        **(given.get("CONNECTION_POOL_KWARGS") or {}),
    }
    # The other options concern the cache: serializer, pool size, parser, timeouts.
    known = options_of("rediss")
    options = {k: v for k, v in merged.items() if k in known}
    return [_for_locks(url, known) for url in location if url], options


def _for_locks(url: str, known: Collection[str]) -> str:
    """Return the URL of a cache without the query options that concern the cache."""
    base, _, query = url.partition("?")
    kept = [pair for pair in query.split("&") if pair.partition("=")[0] in known]
    return f"{base}?{'&'.join(kept)}" if kept else base


def _databases(config: Mapping[str, Any]) -> Iterator[str]:
    locations, options = _locations(config)
    for url in locations:
        # A URL that we cannot read is an error of the cache, not of REDLOCK.
        with suppress(ValueError):
            yield Address.from_url(url, options).store
