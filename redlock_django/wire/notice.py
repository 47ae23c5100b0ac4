"""How a server that came, or failed, is reported, by the links and by every store."""

from __future__ import annotations

from collections.abc import Callable

Notice = Callable[[str, bool, str], object]
"""A callback about a server, by its name: did it come (True) or fail, and the reason.

The reason is why it failed, or why the votes of a master that came are not counted yet ("" if they
are). The callback runs in a thread of the store, such as one that connects, and delays no caller.
"""


def ignore(server: str, up: bool, reason: str) -> None:
    """Ignore a notice."""
