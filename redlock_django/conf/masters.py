"""The entries of MASTERS, URLs or cache aliases, turned into addresses of different servers."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from redlock_django.wire.address import CONNECTION_OPTIONS, Address, nearest

_CACHE_CLASSES = {
    "django_redis.cache.RedisCache",
    "django.core.cache.backends.redis.RedisCache",
}


Groups = tuple[tuple[Address, ...], ...]


def read_masters(masters: object, options: Mapping[str, Any]) -> Groups:
    """Give the address of every entry of MASTERS, in order and by group; `options` go to each.

    `masters` is a list or a comma-separated string of URLs and `cache:<alias>` names, which
    are one group, or a list of such lists: several groups, with as many masters each. Raises
    ValueError with a text that names the entry's position and holds no password.
    """
    if isinstance(masters, str):
        masters = [part for part in (part.strip() for part in masters.split(",")) if part]
    if not isinstance(masters, list | tuple):
        raise ValueError(
            f"MASTERS must be a list of URLs, a list of such lists or one comma-separated string, "
            f"got {type(masters).__name__}"
        )
    groups = _groups(masters)
    found: list[tuple[str, Address]] = []
    for number, group in enumerate(groups, 1):
        for position, master in enumerate(group, 1):
            where = f"group {number}, " if len(groups) > 1 else ""
            where += f"master {position}"
            try:
                address = _address(master, options)
            except ValueError as error:
                raise ValueError(f"MASTERS: {where}: {error}") from None
            for other, earlier in found:
                if earlier.endpoint == address.endpoint:
                    raise ValueError(
                        f"MASTERS: {_both(other, where)} are one server ({earlier.name} and "
                        f"{address.name}); every master must be a server of its own"
                    )
            found.append((where, address))
    addresses = iter(address for _, address in found)
    return tuple(tuple(islice(addresses, len(group))) for group in groups)


def _groups(masters: Sequence[Any]) -> list[Sequence[Any]]:
    kinds = {isinstance(entry, list | tuple) for entry in masters}
    if True not in kinds:
        return [masters]
    if False in kinds:
        raise ValueError("MASTERS must be a list of URLs or a list of groups (lists), not both")
    sizes = [len(group) for group in masters]
    for number, size in enumerate(sizes, 1):
        if not size:
            raise ValueError(f"MASTERS: group {number} is empty")
        if size != sizes[0]:
            raise ValueError(
                f"MASTERS: group 1 has {sizes[0]} masters and group {number} has {size}: all "
                "groups must have as many, so that every resource is as safe as the next"
            )
    return list(masters)


def _both(one: str, other: str) -> str:
    if one.startswith("master "):
        return f"masters {one.removeprefix('master ')} and {other.removeprefix('master ')}"
    return f"{one} and {other}"


def _address(master: object, options: Mapping[str, Any]) -> Address:
    if isinstance(master, str) and master.startswith("cache:"):
        url, of_cache = _cache(master.removeprefix("cache:"))
        return Address.from_url(url, {**of_cache, **options})
    return Address.from_url(master, options)  # type: ignore[arg-type]  # it says what is no URL


def _cache(alias: str) -> tuple[str, dict[str, Any]]:
    """Read where a cache alias lives; its pool is never taken, it has timeouts of its own."""
    caches: Mapping[str, Mapping[str, Any]] = settings.CACHES
    if alias not in caches:
        raise ValueError(f"there is no cache {alias!r} in CACHES{nearest(alias, caches)}")
    config = caches[alias]
    if not _is_redis(config):
        raise ValueError(
            f"cache {alias!r} is no Redis cache (its BACKEND is {config.get('BACKEND', '')!r})"
        )
    location, options = _locations(config)
    if len(location) != 1:
        raise ValueError(
            f"cache {alias!r} has {len(location)} LOCATIONs, which are a primary and its replicas, "
            "not masters; name each master by itself"
        )
    if "SENTINELS" in (config.get("OPTIONS") or {}):
        raise ValueError(f"cache {alias!r} is behind Sentinel; name the masters' own addresses")
    return location[0], options


def caches_on(address: Address) -> list[str]:
    """Give the cache aliases whose `clear()` empties the very database of this master."""
    return [
        alias
        for alias, config in settings.CACHES.items()
        if _is_redis(config) and _database(address) in _databases(config)
    ]


def hosts(addresses: Iterable[Address]) -> dict[str, list[str]]:
    """Give the names of the masters on each machine, as far as addresses show it."""
    found: dict[str, list[str]] = {}
    for address in addresses:
        found.setdefault(host_of(address), []).append(address.name)
    return found


def host_of(address: Address) -> str:
    """Give the machine a master is on, "" for this one: a loopback address or a socket file."""
    host = str(address.endpoint[0]) if isinstance(address.endpoint, tuple) else ""
    return "" if host == "::1" or host.startswith("127.") else host


def _is_redis(config: Mapping[str, Any]) -> bool:
    try:
        lineage = import_string(str(config.get("BACKEND", ""))).__mro__
    except (ImportError, AttributeError):
        return False
    return any(f"{cls.__module__}.{cls.__qualname__}" in _CACHE_CLASSES for cls in lineage)


def _locations(config: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Give the URLs of a Redis cache, and those of its options that are about connections."""
    location = config.get("LOCATION") or ()
    if isinstance(location, str):
        location = re.split("[;,]", location)
    given: Mapping[str, Any] = config.get("OPTIONS") or {}
    upper = ("USERNAME", "PASSWORD", "SOCKET_TIMEOUT", "SOCKET_CONNECT_TIMEOUT")
    merged = {
        **given,
        **{name.lower(): given[name] for name in upper if given.get(name)},
        **(given.get("CONNECTION_POOL_KWARGS") or {}),
    }
    # The rest is about the cache: serializer, pool size, parser.
    options = {k: v for k, v in merged.items() if k in CONNECTION_OPTIONS}
    return [index for index in location if index], options


def _databases(config: Mapping[str, Any]) -> Iterator[tuple[Hashable, int]]:
    locations, options = _locations(config)
    for url in locations:
        # What is no address of ours is the cache's own trouble.
        with suppress(ValueError):
            yield _database(Address.from_url(url, options))


def _database(address: Address) -> tuple[Hashable, int]:
    return address.endpoint, address.kwargs["db"]
