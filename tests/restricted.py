"""Run the suite with the rights of docs/reference/acl.md: `REDLOCK_LEAST_ACL=1 uv run pytest`.

The code under test connects as the default user, who may run only the commands that `least_acl`
grants. The tests themselves connect as another user. Keys and channels are not restricted, because
tests use prefixes of their own.
"""

from __future__ import annotations

from typing import Any

from redlock_django.testing.masters import LocalMaster
from redlock_django.wire.servers.acl import least_acl

COMMANDS = [word for word in least_acl("redlock", looking=True).split() if word[0] in "+-"]
USERS = [
    *("--user", "default", "on", "nopass", "~*", "&*", *COMMANDS),
    # The test kit pings servers, tests name their links to find them, and replicas synchronize.
    *("+ping", "+client|setname", "+psync", "+replconf"),
    *("--user", "tests", "on", "nopass", "~*", "&*", "+@all"),
]


def restrict() -> None:
    """Define these users on every server that is started from now on."""
    spawn, client = LocalMaster.spawn, LocalMaster.client

    def restricted(self: LocalMaster) -> None:
        if "--user" not in self._args:
            self._args = (*self._args, *USERS)
        spawn(self)

    def unrestricted(self: LocalMaster) -> Any:
        made = client(self)
        made.connection_pool.connection_kwargs.update(username="tests", password="any")
        return made

    LocalMaster.spawn = restricted  # type: ignore[method-assign]
    LocalMaster.client = unrestricted  # type: ignore[method-assign]
