"""The banner above the list of held locks: whether locks are granted now, or what to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from redlock_django.backends.inspection.results import QuorumHealth, ServerHealth

ADVICE = {
    "unreachable": (
        "Start the server, or repair the network or its password: the reason is next to its name."
    ),
    "untrusted": (
        "Wait until the time shown is over: the server may have forgotten locks. If Redis masters "
        "are new, run “manage.py redlock_init”."
    ),
    "eviction": "Set “maxmemory-policy noeviction” on the server.",
    "replica": "Use an independent master instead of a replica.",
    "cluster": "Use an independent master instead of a cluster node.",
    "twin": "Remove the duplicate from MASTERS.",
    "clock": "Synchronize the clock of the server, for example with NTP.",
    "deployment": (
        "Use the same settings in all processes. After a planned change, run “manage.py "
        "redlock_init --reconfigure”."
    ),
    "acl": "Grant the user the commands that “manage.py redlock_status” names.",
    "errors": "Repair what the server answers to commands: the reason is next to its name.",
    "version": "Install Redis 5, Valkey 7.2 or a newer version.",
    "run_id": "Connect without the proxy that changes INFO.",
    "loading": "Wait until the server has loaded its data.",
}
"""What an operator can do about a fault, by its code; `conflict` follows from `deployment`."""


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
    servers: Sequence[ServerHealth], *, harmless: Collection[str], proceeds: bool
) -> QuorumBanner:
    """Return the banner for these masters.

    Faults in `harmless` do not keep a master from being counted. `proceeds` is whether requests
    run without a lock while there is no quorum (ON_UNAVAILABLE).
    """
    quorum = QuorumHealth.of(servers)
    count = _count(quorum)
    uncounted = [server for server in servers if not server.counted]
    if not uncounted:
        return QuorumBanner(level="ok", headline=count, detail="")
    codes = {code: None for one in uncounted for code, _text in one.faults if code not in harmless}
    if quorum.is_reached:
        headline, detail = count, _reserve(quorum.counted - quorum.needed)
    else:
        headline, detail = _headline(proceeds), f"{count} {_consequences(quorum)}"
    return QuorumBanner(
        level="warning" if quorum.is_reached else "error",
        headline=headline,
        detail=detail,
        problems=tuple((one.name, _reason(one, harmless)) for one in uncounted),
        advice=tuple(str(ADVICE[code]) for code in codes if code in ADVICE),
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


def _reason(server: ServerHealth, harmless: Collection[str]) -> str:
    """Return why a master is not counted."""
    return "; ".join(text for code, text in server.faults if code not in harmless)
