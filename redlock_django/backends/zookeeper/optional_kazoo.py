"""The names of kazoo that the ZooKeeper store uses. Without kazoo, the error names the extra."""

from __future__ import annotations

try:
    from kazoo.client import KazooClient
    from kazoo.exceptions import (
        BadVersionError,
        ConnectionClosedError,
        ConnectionLoss,
        KazooException,
        NodeExistsError,
        NoNodeError,
        SessionExpiredError,
    )
    from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
    from kazoo.hosts import collect_hosts
    from kazoo.protocol.paths import normpath
    from kazoo.protocol.states import KazooState, KeeperState
    from kazoo.security import ACL, CREATOR_ALL_ACL
except ImportError as error:
    raise ImportError(
        "the ZooKeeper store needs kazoo: pip install 'redlock-django[zookeeper]'"
    ) from error

__all__ = [
    "ACL",
    "CREATOR_ALL_ACL",
    "BadVersionError",
    "ConnectionClosedError",
    "ConnectionLoss",
    "KazooClient",
    "KazooException",
    "KazooState",
    "KazooTimeoutError",
    "KeeperState",
    "NoNodeError",
    "NodeExistsError",
    "SequentialThreadingHandler",
    "SessionExpiredError",
    "collect_hosts",
    "normpath",
]
