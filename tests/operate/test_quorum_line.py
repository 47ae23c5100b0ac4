"""The line above the list of held locks: whether there is a quorum."""

from __future__ import annotations

import pytest

from redlock_django.admin.held_locks_page import legend, quorum_line
from redlock_django.backends.inspection.results import HeldLocks, QuorumHealth
from redlock_django.engine.inspection.holders import Sighting, merge

OURS = b"a" * 32 + b" {}"


GRANTED = "are needed. Locks are still granted"
REFUSED = "No quorum: locks are refused now."
UNTIL = (
    "Locks that are held there cannot be renewed and end when their TTL is over. Locks are granted "
    "again as soon as"
)
LINES = {
    (3, 3): "ok: Quorum: all 3 servers are up, 2 are needed.",
    (3, 2): f"warning: Quorum: 2 of 3 servers are counted, 2 {GRANTED}, "
    "but if one more server fails, they are refused.",
    (5, 4): f"warning: Quorum: 4 of 5 servers are counted, 3 {GRANTED}, "
    "and 1 more server may fail.",
    (7, 6): f"warning: Quorum: 6 of 7 servers are counted, 4 {GRANTED}, "
    "and 2 more servers may fail.",
    (5, 2): f"error: {REFUSED} 2 of 5 servers are counted, 3 are needed. "
    f"{UNTIL} 3 servers are counted.",
    (1, 1): "ok: The only server is up.",
    (1, 0): f"error: {REFUSED} The only server is not counted. {UNTIL} it is counted.",
}
"""The level and the line, by the numbers of servers and of those that are counted."""


def line(servers: int, counted: int, *, proceeds: bool = False) -> tuple[str, str]:
    quorum = QuorumHealth(servers=servers, counted=counted, needed=servers // 2 + 1)
    return quorum_line(quorum, proceeds=proceeds)


@pytest.mark.parametrize(("servers", "counted"), LINES)
def test_the_line_says_whether_locks_are_granted(servers: int, counted: int) -> None:
    assert ": ".join(line(servers, counted)) == LINES[servers, counted]


def test_requests_that_proceed_without_a_lock() -> None:
    said = "No quorum: requests run without a lock now (ON_UNAVAILABLE). "
    assert line(3, 1, proceeds=True)[1].startswith(said)


def test_servers_that_are_up_without_the_lock_are_explained() -> None:
    servers = ("a", "b", "c")
    both = [Sighting(name, OURS, 9.0) for name in ("a", "b")]

    def found(*silent: str) -> HeldLocks:
        holding = merge("r", both, servers, silent)
        return HeldLocks(
            using="default",
            locks=(holding,),
            servers=servers,
            silent=dict.fromkeys(silent, "down"),
            complete=True,
            count=1,
        )

    assert found().locks[0].missing == ("c",)
    assert "renewal" in legend(found())["not on"]
    assert legend(found("c")) == {}  # it is silent: named above the list
