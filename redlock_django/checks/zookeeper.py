"""Checks of locks in ZooKeeper: clients that may delete them, and servers whose loss stops them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from django.core import checks
from django.core.checks import CheckMessage

from redlock_django.conf.settings import load
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.services import locks

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
    for alias in locks:
        with suppress(InvalidRedlock):  # E001 reports it.
            options = load(alias)
            if options.backend_class.__name__ == "ZooKeeperBackend":
                yield alias, cast("ZooKeeperSettings", options.store)
