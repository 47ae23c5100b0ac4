"""The whole suite with the rights of docs/reference/acl.md: `REDLOCK_LEAST_ACL=1 uv run pytest`.

What is tested connects as the default user, who may run what `least_acl` grants and nothing else;
the tests themselves as another one. Keys and channels are not restricted: tests have prefixes of
their own.
"""

from __future__ import annotations

from typing import Any

from redlock_django.testing.masters import LocalMaster
from redlock_django.wire.acl import least_acl

COMMANDS = [word for word in least_acl("redlock", looking=True).split() if word[0] in "+-"]
USERS = [
    *("--user", "default", "on", "nopass", "~*", "&*", *COMMANDS),
    # How the test kit finds out that a server is there, how tests find their links, and replicas.
    *("+ping", "+client|setname", "+psync", "+replconf"),
    *("--user", "tests", "on", "nopass", "~*", "&*", "+@all"),
]


def restrict() -> None:
    """Let every server that is started from now on have these users."""
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
