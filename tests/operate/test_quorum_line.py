"""The line above the list of held locks: whether there is a quorum."""

from __future__ import annotations

from redlock_django.admin.held_locks_page import legend, quorum_line
from redlock_django.backends.inspection.results import HeldLocks, QuorumHealth
from redlock_django.engine.inspection.holders import Sighting, merge

OURS = b"a" * 32 + b" {}"


def line(servers: int, counted: int, *, proceeds: bool = False) -> tuple[str, str]:
    quorum = QuorumHealth(servers=servers, counted=counted, needed=servers // 2 + 1)
    return quorum_line(quorum, proceeds=proceeds)


def test_all_servers_are_up() -> None:
    assert line(3, 3) == ("ok", "Quorum: all 3 servers are up, 2 are needed.")


def test_a_quorum_that_the_next_failure_ends() -> None:
    assert line(3, 2) == (
        "warning",
        (
            "Quorum: 2 of 3 servers are counted, 2 are needed. Locks are still granted, but if one "
            "more server fails, they are refused."
        ),
    )
    assert line(5, 4)[1].endswith("Locks are still granted, and 1 more server may fail.")
    assert line(7, 6)[1].endswith("Locks are still granted, and 2 more servers may fail.")


def test_a_lost_quorum_is_an_error() -> None:
    assert line(5, 2) == (
        "error",
        (
            "No quorum: locks are refused now. 2 of 5 servers are counted, 3 are needed. Locks "
            "that are held there cannot be renewed and end when their TTL is over. Locks are "
            "granted again as soon as 3 servers are counted."
        ),
    )


def test_requests_that_proceed_without_a_lock() -> None:
    said = "No quorum: requests run without a lock now (ON_UNAVAILABLE). "
    assert line(3, 1, proceeds=True)[1].startswith(said)


def test_the_only_server_is_up_or_no_quorum() -> None:
    assert line(1, 1) == ("ok", "The only server is up.")
    assert line(1, 0) == (
        "error",
        (
            "No quorum: locks are refused now. The only server is not counted. Locks that are held "
            "there cannot be renewed and end when their TTL is over. Locks are granted again as "
            "soon as it is counted."
        ),
    )


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
