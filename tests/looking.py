"""One client per master for inspecting its keys, kept as long as the server process exists."""

from __future__ import annotations

from collections.abc import Sequence
from subprocess import Popen
from typing import Any
from weakref import WeakKeyDictionary

from redis import Redis

from redlock_django.testing.masters import LocalMaster

_kept: WeakKeyDictionary[Popen[bytes], Redis] = WeakKeyDictionary()


def looking_at(master: LocalMaster) -> Any:
    """Return the client that all tests share: a new one costs five times as much as a command."""
    if master.process not in _kept:
        _kept[master.process] = master.client()
    return _kept[master.process]


def scripts_run(masters: Sequence[LocalMaster]) -> list[int]:
    """Return how many scripts each master has run."""
    stats = [looking_at(master).info("commandstats") for master in masters]
    return [
        sum(each.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))
        for each in stats
    ]
