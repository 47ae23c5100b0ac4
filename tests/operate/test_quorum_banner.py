"""The banner above the list of held locks: the quorum, the masters that fail, what to do."""

from __future__ import annotations

from django.utils.text import capfirst
from django.utils.translation import override

from redlock_django.admin.held_locks.masters import master_rows
from redlock_django.admin.held_locks.quorum_banner import QuorumBanner, quorum_banner
from redlock_django.admin.labels import missing_text
from redlock_django.backends.inspection.results import ServerHealth
from redlock_django.engine.inspection.faults import Fault, fault
from redlock_django.engine.inspection.health import Health
from redlock_django.engine.inspection.holders import Sighting, merge

UP = Health(server="Valkey")
OURS = b"a" * 32 + b" {}"
EVICTS = fault("eviction", policy="allkeys-lru")
WOULD_EVICT = fault("policy", policy="allkeys-lru")
RESTARTED = fault("untrusted", why="has restarted: trusted in 30 s")


def server(name: str, *faults: Fault, counted: bool = True) -> ServerHealth:
    return ServerHealth(name=name, health=UP, reason="", faults=faults, counted=counted)


def down(name: str) -> ServerHealth:
    faults = (fault("unreachable", why="refused the connection"),)
    return ServerHealth(name=name, health=None, reason="refused", faults=faults, counted=False)


def banner(*servers: ServerHealth, proceeds: bool = False) -> QuorumBanner:
    with override("en"):
        return quorum_banner(servers, proceeds=proceeds)


def test_all_masters_are_up() -> None:
    shown = banner(server("a"), server("b"), server("c", WOULD_EVICT))
    assert (shown.level, shown.detail, shown.problems, shown.advice) == ("ok", "", (), ())
    assert shown.headline == "Quorum: all 3 servers are up, 2 are needed."


def test_a_server_that_is_counted_is_not_called_otherwise() -> None:
    faults = (WOULD_EVICT, EVICTS)
    servers = [server("a", faults[0]), server("b", faults[1]), server("c", *faults, counted=False)]
    with override("en"):
        rows = master_rows(servers, {"eviction"})
    shown = [("warning", "up"), ("warning", "tolerated"), ("error", "not counted")]
    assert [(row.level, row.word) for row in rows] == shown


def test_a_quorum_that_the_next_failure_ends() -> None:
    restarted = server("b", RESTARTED, counted=False)
    shown = banner(server("a"), restarted, server("c"))
    assert shown.level == "warning"
    assert shown.headline == "Quorum: 2 of 3 servers are counted, 2 are needed."
    assert shown.detail == "Locks are still granted. If one more server fails, they are refused."
    assert shown.problems == (("b", "has restarted: trusted in 30 s"),)
    assert shown.advice == (f"{capfirst(RESTARTED.remedy)}.",)


def test_a_lost_quorum_is_an_error_with_its_reasons() -> None:
    evicts = server("b", EVICTS, WOULD_EVICT, counted=False)
    shown = banner(down("a"), evicts, server("c"), down("d"), server("e"))
    assert shown.level == "error"
    assert shown.headline == "No quorum: locks are refused now."
    assert shown.detail == (
        "2 of 5 servers are counted, 3 are needed. Locks that are held there cannot be renewed and "
        "end when their TTL is over. Locks are granted again as soon as 3 servers are counted."
    )
    assert shown.problems == (
        ("a", "refused the connection"),
        ("b", "may evict locks (maxmemory-policy allkeys-lru)"),
        ("d", "refused the connection"),
    )
    assert shown.advice == (
        "Start it, or repair its address, its password or the network.",
        "Set maxmemory-policy to noeviction.",
    )


def test_requests_that_proceed_without_a_lock() -> None:
    shown = banner(down("a"), down("b"), server("c"), proceeds=True)
    assert shown.headline == "No quorum: requests run without a lock now (ON_UNAVAILABLE)."


def test_the_only_server_is_up_or_no_quorum() -> None:
    assert banner(server("db")).headline == "The only server is up."
    shown = banner(down("db"))
    assert shown.headline == "No quorum: locks are refused now."
    assert shown.detail == (
        "The only server is not counted. Locks that are held there cannot be renewed and end when "
        "their TTL is over. Locks are granted again as soon as it is counted."
    )


def test_masters_that_are_up_without_the_lock_are_named() -> None:
    servers = ("a", "b", "c")
    both = [Sighting(name, OURS, 9.0) for name in ("a", "b")]
    with override("en"):
        text = missing_text(merge("r", both, servers, ()))
        assert text.startswith("Not stored on c: ")
        assert "renewal" in text
        assert missing_text(merge("r", both, servers, ("c",))) == ""  # it is silent: another text
