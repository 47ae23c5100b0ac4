"""The entries of MASTERS, URLs or cache aliases, turned into addresses of different servers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from redlock_django.wire.address import CONNECTION_OPTIONS, Address, nearest

_CACHE_CLASSES = {
    "django_redis.cache.RedisCache",
    "django.core.cache.backends.redis.RedisCache",
}


def read_masters(masters: object, options: Mapping[str, Any]) -> tuple[Address, ...]:
    """Give the address of every entry of MASTERS, in order; `options` go to each of them.

    `masters` is a list or a comma-separated string of URLs and `cache:<alias>` names.
    Raises ValueError with a text that names the entry's position and holds no password.
    """
    if isinstance(masters, str):
        masters = [part for part in (part.strip() for part in masters.split(",")) if part]
    if not isinstance(masters, list | tuple):
        raise ValueError(
            f"MASTERS must be a list of URLs or one comma-separated string, "
            f"got {type(masters).__name__}"
        )
    addresses: list[Address] = []
    for position, master in enumerate(masters, 1):
        try:
            address = _address(master, options)
        except ValueError as error:
            raise ValueError(f"MASTERS: master {position}: {error}") from None
        for other, earlier in enumerate(addresses, 1):
            if earlier.place == address.place:
                raise ValueError(
                    f"MASTERS: masters {other} and {position} are one server "
                    f"({earlier.name} and {address.name}); every master must be a server of its own"
                )
        addresses.append(address)
    return tuple(addresses)


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
    backend = str(config.get("BACKEND", ""))
    try:
        lineage = {f"{c.__module__}.{c.__qualname__}" for c in import_string(backend).__mro__}
    except (ImportError, AttributeError):
        lineage = set()
    if not lineage & _CACHE_CLASSES:
        raise ValueError(f"cache {alias!r} is no Redis cache (its BACKEND is {backend!r})")
    given_location = config.get("LOCATION") or ()
    if isinstance(given_location, str):
        given_location = re.split("[;,]", given_location)
    location = [place for place in given_location if place]
    if len(location) != 1:
        raise ValueError(
            f"cache {alias!r} has {len(location)} LOCATIONs, which are a primary and its replicas, "
            "not masters; name each master by itself"
        )
    given: Mapping[str, Any] = config.get("OPTIONS") or {}
    if "SENTINELS" in given:
        raise ValueError(f"cache {alias!r} is behind Sentinel; name the masters' own addresses")
    upper = ("USERNAME", "PASSWORD", "SOCKET_TIMEOUT", "SOCKET_CONNECT_TIMEOUT")
    merged = {
        **given,
        **{name.lower(): given[name] for name in upper if given.get(name)},
        **(given.get("CONNECTION_POOL_KWARGS") or {}),
    }
    # The rest is about the cache: serializer, pool size, parser.
    return location[0], {k: v for k, v in merged.items() if k in CONNECTION_OPTIONS}
