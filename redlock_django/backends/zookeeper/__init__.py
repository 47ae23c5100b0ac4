"""Locks in ZooKeeper."""

from __future__ import annotations

try:
    import kazoo  # noqa: F401 - before the modules of this package, which import from it
except ImportError as error:
    raise ImportError(
        "the ZooKeeper store needs kazoo: pip install 'redlock-django[zookeeper]'"
    ) from error

from redlock_django.backends.zookeeper.backend import ZooKeeperBackend

__all__ = ["ZooKeeperBackend"]
