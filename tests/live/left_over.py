"""What is left of locks on real masters."""

from __future__ import annotations

from collections.abc import Sequence

from redlock_django.testing.masters import LocalMaster
from tests.looking import looking_at
from tests.waiting import until


def locked(masters: Sequence[LocalMaster], prefix: str = "redlock") -> dict[str, int]:
    """Every lock key, and on how many masters it stands."""
    return _standing(masters, f"{prefix}:lock:*")


def _standing(masters: Sequence[LocalMaster], *patterns: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for master in masters:
        for keys in _keys(master, patterns):
            for key in keys:
                found[key.decode()] = found.get(key.decode(), 0) + 1
    return found


def _keys(master: LocalMaster, patterns: Sequence[str]) -> list[list[bytes]]:
    with looking_at(master).pipeline(transaction=False) as pipe:
        for pattern in patterns:
            pipe.keys(pattern)
        return list(pipe.execute())


def nothing_left(masters: Sequence[LocalMaster], seconds: float = 3.0) -> None:
    """Wait until no master has a lock or a queue: long before a TTL, so by a release alone."""
    left: dict[str, int] = {}

    def nothing() -> bool:
        left.clear()
        left.update(_standing(masters, "redlock:lock:*", "redlock:queue:*"))
        return not left

    try:
        until(nothing, seconds=seconds)
    except AssertionError:
        raise AssertionError(f"left behind: {left}") from None


def granted(masters: Sequence[LocalMaster], resource: str) -> bool:
    """Whether each has granted it once, held or over by now."""
    for master in masters:
        with master.client() as client:
            if not client.exists(f"redlock:fence:{resource}"):
                return False
    return True
