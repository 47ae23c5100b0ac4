"""Locks in ZooKeeper."""

from __future__ import annotations

from redlock_django.backends.zookeeper.backend import ZooKeeperBackend

__all__ = ["ZooKeeperBackend"]
