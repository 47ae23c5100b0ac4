"""Locks that are stored on masters directly, in the form in which a client stores them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from redlock_django.engine.validity import fingerprint_of
from redlock_django.testing.masters import LocalMaster


def plant(
    masters: Sequence[LocalMaster],
    resource: str,
    *,
    token: str = "a",
    ttl: int = 60,
    prefix: str = "redlock",
    **holder: str | float,
) -> str:
    """Store a lock for `ttl` seconds and return its fingerprint.

    Its token is the hex digit `token`, repeated.
    """
    value = json.dumps({**about_holder(), **holder}, separators=(",", ":"))
    plant_value(masters, resource, f"{token * 32} {value}", ttl=ttl, prefix=prefix)
    return fingerprint_of((token * 32).encode())


def about_holder() -> dict[str, str | float]:
    """Return a holder that has held its lock for 42 seconds."""
    about: dict[str, str | float] = {
        "host": "web1",
        "pid": 7,
        "app": "shop",
        "path": "/orders/1/pay/",
        "user": "7",
    }
    return {**about, "at": round(time.time() - 42, 1)}


def plant_value(
    masters: Sequence[LocalMaster],
    resource: str,
    value: str,
    *,
    ttl: float,
    prefix: str = "redlock",
) -> None:
    """Store this value as a lock for `ttl` seconds."""
    for master in masters:
        with master.client() as client:
            seconds, micros = client.time()
            client.set(f"{prefix}:lock:{resource}", value, px=round(ttl * 1000))
            expiry = seconds * 1000 + micros // 1000 + round(ttl * 1000)
            client.zadd(f"{prefix}:held", {resource: expiry})


def free(masters: Sequence[LocalMaster], resource: str) -> None:
    """Delete a lock from the masters, as a client that releases it does."""
    for master in masters:
        with master.client() as client:
            client.delete(f"redlock:lock:{resource}")
            client.zrem("redlock:held", resource)


def on(masters: Sequence[LocalMaster], resource: str) -> int:
    """Return how many masters store a lock."""
    count = 0
    for master in masters:
        with master.client() as client:
            count += bool(client.exists(f"redlock:lock:{resource}"))
    return count
