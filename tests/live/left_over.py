"""The lock and queue keys that are left on real masters."""

from __future__ import annotations

from collections.abc import Sequence

from redlock_django.testing.masters import LocalMaster
from tests.looking import looking_at
from tests.waiting import until

PATTERNS = ("redlock:lock:*", "redlock:queue:*")
"""The keys of which releases leave none."""


def locked(masters: Sequence[LocalMaster], prefix: str = "redlock") -> dict[str, int]:
    """Return each lock key, and the number of masters that have it."""
    return _masters_by_key(masters, f"{prefix}:lock:*")


def _masters_by_key(masters: Sequence[LocalMaster], *patterns: str) -> dict[str, int]:
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


def values(masters: Sequence[LocalMaster], resource: str) -> list[bytes]:
    """Return the values of a lock on the masters that have it."""
    found = [looking_at(master).get(f"redlock:lock:{resource}") for master in masters]
    return [value for value in found if value is not None]


def nothing_left(masters: Sequence[LocalMaster], seconds: float = 20.0) -> None:
    """Wait until no master has a lock or a queue: before a TTL of 30 s ends, so by its release."""
    left: dict[str, int] = {}

    def nothing() -> bool:
        left.clear()
        left.update(_masters_by_key(masters, *PATTERNS))
        return not left

    try:
        until(nothing, seconds=seconds)
    except AssertionError:
        raise AssertionError(f"keys that were not deleted: {left}") from None


def granted(masters: Sequence[LocalMaster], resource: str) -> bool:
    """Return whether every master has ever granted the lock; it may have expired since."""
    for master in masters:
        with master.client() as client:
            if not client.exists(f"redlock:fence:{resource}"):
                return False
    return True
