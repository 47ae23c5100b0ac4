"""Masters with wrong settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster


def misconfigure(first: LocalMaster, second: LocalMaster, third: LocalMaster) -> None:
    """Make one master evict keys, one evict keys with an expiry, and one a replica."""
    with first.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    with second.client() as client:
        client.config_set("maxmemory-policy", "volatile-ttl")
        client.config_set("maxmemory", "100mb")
    with third.client() as client:
        client.replicaof("127.0.0.1", first.port)
