"""The banner above the list of held locks: whether locks are granted now, or what to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from redlock_django.backends.inspection.results import QuorumHealth, ServerHealth, quorums

ADVICE = {
    "unreachable": gettext_lazy(
        "Start the server, or repair the network or its password: the reason is next to its name."
    ),
    "untrusted": gettext_lazy(
        "Wait until the time shown is over: the server may have forgotten locks. If Redis masters "
        "are new, run “manage.py redlock_init”."
    ),
    "eviction": gettext_lazy("Set “maxmemory-policy noeviction” on the server."),
    "replica": gettext_lazy("Use an independent master instead of a replica."),
    "cluster": gettext_lazy("Use an independent master instead of a cluster node."),
    "twin": gettext_lazy("Remove the duplicate from MASTERS."),
    "clock": gettext_lazy("Synchronize the clock of the server, for example with NTP."),
    "deployment": gettext_lazy(
        "Use the same settings in all processes. After a planned change, run “manage.py "
        "redlock_init --reconfigure”."
    ),
    "acl": gettext_lazy("Grant the user the commands that “manage.py redlock_status” names."),
    "errors": gettext_lazy(
        "Repair what the server answers to commands: the reason is next to its name."
    ),
    "version": gettext_lazy("Install Redis 5, Valkey 7.2 or a newer version."),
    "run_id": gettext_lazy("Connect without the proxy that changes INFO."),
    "loading": gettext_lazy("Wait until the server has loaded its data."),
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
    groups = quorums(servers)
    counts = " ".join(map(_count, groups))
    uncounted = [server for server in servers if not server.counted]
    if not uncounted:
        return QuorumBanner(level="ok", headline=counts, detail="")
    codes = {code: None for one in uncounted for code, _text in one.faults if code not in harmless}
    lost = [group for group in groups if group.counted < group.needed]
    if lost:
        headline = _headline(lost, len(groups), proceeds)
        detail = f"{counts} {_consequences(lost[0], len(groups))}"
    else:
        headline = counts
        detail = _reserve(min(group.counted - group.needed for group in groups))
    return QuorumBanner(
        level="error" if lost else "warning",
        headline=headline,
        detail=detail,
        problems=tuple((one.name, _reason(one, harmless)) for one in uncounted),
        advice=tuple(str(ADVICE[code]) for code in codes if code in ADVICE),
    )


def _consequences(lost: QuorumHealth, groups: int) -> str:
    """Return what happens to the locks of a group without a quorum, and until when."""
    if groups > 1:
        again = _("They are granted again as soon as the group has its quorum.")
    elif lost.servers == 1:
        again = _("Locks are granted again as soon as it is counted.")
    else:
        again = _("Locks are granted again as soon as %s servers are counted.") % lost.needed
    renewed = _("Locks that are held there cannot be renewed and end when their TTL is over.")
    return f"{renewed} {again}"


def _reserve(spare: int) -> str:
    """Return how many more masters may fail before locks are refused."""
    if not spare:
        return _("Locks are still granted. If one more server fails, they are refused.")
    text = ngettext(
        "Locks are still granted, and %s more server may fail.",
        "Locks are still granted, and %s more servers may fail.",
        spare,
    )
    return text % spare


def _count(group: QuorumHealth) -> str:
    """Return a sentence about the quorum of a group."""
    values = {
        "group": group.label,
        "counted": group.counted,
        "total": group.servers,
        "needed": group.needed,
    }
    if group.servers == 1:  # such as a database
        up, down = _("The only server is up."), _("The only server is not counted.")
        text = "%(group)s" + (up if group.counted else down)
    elif group.counted < group.needed:
        text = _("%(group)s%(counted)s of %(total)s servers are counted, %(needed)s are needed.")
    elif group.counted < group.servers:
        text = _(
            "%(group)sQuorum: %(counted)s of %(total)s servers are counted, %(needed)s are needed."
        )
    else:
        text = _("%(group)sQuorum: all %(total)s servers are up, %(needed)s are needed.")
    return text % values


def _headline(lost: Sequence[QuorumHealth], groups: int, proceeds: bool) -> str:
    where = ", ".join(group.label.rstrip(": ") for group in lost) if groups > 1 else ""
    if proceeds and where:
        return _("No quorum in %s: its requests run without a lock now.") % where
    if proceeds:
        return _("No quorum: requests run without a lock now (ON_UNAVAILABLE).")
    if where:
        return _("No quorum in %s: its locks are refused now.") % where
    return _("No quorum: locks are refused now.")


def _reason(server: ServerHealth, harmless: Collection[str]) -> str:
    """Return why a master is not counted."""
    return "; ".join(text for code, text in server.faults if code not in harmless)
