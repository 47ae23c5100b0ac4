"""Checks of locks in ZooKeeper: clients that may delete them, and servers whose loss stops them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from django.core import checks
from django.core.checks import CheckMessage

from redlock_django.checks.aliases import valid_aliases

if TYPE_CHECKING:  # it needs kazoo
    from redlock_django.backends.zookeeper.settings import ZooKeeperSettings


def check_zookeeper(**_: Any) -> list[CheckMessage]:
    """Return W046 for nodes that every client may delete, W047 for fewer than three servers."""
    messages: list[CheckMessage] = []
    for alias, store in _stores():
        if store.has_open_acl:
            messages.append(
                checks.Warning(
                    f"REDLOCK[{alias!r}]: every client of the ZooKeeper servers can delete locks.",
                    hint="Set auth_data or sasl_options in OPTIONS, and then the nodes belong to "
                    "these credentials; or set default_acl.",
                    id="redlock_django.W046",
                )
            )
        if len(store.hosts) < 3:
            messages.append(
                checks.Warning(
                    f"REDLOCK[{alias!r}]: HOSTS names {len(store.hosts)} of the ZooKeeper servers: "
                    "while it is down, no lock can be acquired, and held ones are lost.",
                    hint="Use an ensemble of three or five servers, and name all of them.",
                    id="redlock_django.W047",
                )
            )
    return messages


def _stores() -> Iterator[tuple[str, ZooKeeperSettings]]:
    for options in valid_aliases():
        if options.backend_class.__name__ == "ZooKeeperBackend":
            yield options.alias, cast("ZooKeeperSettings", options.store)
