"""The banner above the list of held locks: whether locks are granted now, or what to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from django.utils.text import capfirst

from redlock_django.backends.inspection.results import QuorumHealth, ServerHealth
from redlock_django.engine.inspection.faults import FAULTS


@dataclass(frozen=True, kw_only=True)
class QuorumBanner:
    """The strings of the banner; `level` is "ok", "warning" or "error".

    `problems` are the names of the masters that are not counted, each with the reason.
    """

    level: str
    headline: str
    detail: str
    problems: tuple[tuple[str, str], ...] = ()
    advice: tuple[str, ...] = ()


def quorum_banner(
    servers: Sequence[ServerHealth], *, tolerated: Collection[str] = (), proceeds: bool = False
) -> QuorumBanner:
    """Return the banner for these masters.

    Faults in `tolerated` do not keep a master from being counted. `proceeds` is whether requests
    run without a lock while there is no quorum (ON_UNAVAILABLE).
    """
    quorum = QuorumHealth.of(servers)
    count = _count(quorum)
    uncounted = [server for server in servers if not server.counted]
    if not uncounted:
        return QuorumBanner(level="ok", headline=count, detail="")
    costly = {
        one.name: [f for f in one.faults if not (FAULTS[f.code].counts or f.code in tolerated)]
        for one in uncounted
    }
    advice = {fault.code: fault.remedy for every in costly.values() for fault in every}
    if quorum.is_reached:
        headline, detail = count, _reserve(quorum.counted - quorum.needed)
    else:
        headline, detail = _headline(proceeds), f"{count} {_consequences(quorum)}"
    return QuorumBanner(
        level="warning" if quorum.is_reached else "error",
        headline=headline,
        detail=detail,
        problems=tuple((name, "; ".join(f.text for f in every)) for name, every in costly.items()),
        advice=tuple(f"{capfirst(remedy)}." for remedy in advice.values()),
    )


def _consequences(lost: QuorumHealth) -> str:
    """Return what happens to locks without a quorum, and until when."""
    if lost.servers == 1:
        again = "Locks are granted again as soon as it is counted."
    else:
        again = f"Locks are granted again as soon as {lost.needed} servers are counted."
    renewed = "Locks that are held there cannot be renewed and end when their TTL is over."
    return f"{renewed} {again}"


def _reserve(spare: int) -> str:
    """Return how many more masters may fail before locks are refused."""
    if not spare:
        return "Locks are still granted. If one more server fails, they are refused."
    servers = "server" if spare == 1 else "servers"
    return f"Locks are still granted, and {spare} more {servers} may fail."


def _count(quorum: QuorumHealth) -> str:
    """Return a sentence about how many servers are counted."""
    needed = f"{quorum.needed} are needed."
    if quorum.servers == 1:  # such as a database
        return f"The only server is {'up' if quorum.counted else 'not counted'}."
    if quorum.counted == quorum.servers:
        return f"Quorum: all {quorum.servers} servers are up, {needed}"
    text = f"{quorum.counted} of {quorum.servers} servers are counted, {needed}"
    return f"Quorum: {text}" if quorum.is_reached else text


def _headline(proceeds: bool) -> str:
    if proceeds:
        return "No quorum: requests run without a lock now (ON_UNAVAILABLE)."
    return "No quorum: locks are refused now."
