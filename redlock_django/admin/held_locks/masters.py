"""Table rows about masters: the health of each, and its state of one lock."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from django.template.defaultfilters import filesizeformat
from django.utils.formats import number_format

from redlock_django.admin.labels import duration
from redlock_django.backends.inspection.results import ServerHealth
from redlock_django.engine.membership import NEW


@dataclass(frozen=True, kw_only=True)
class MasterRow:
    """The health of one master as strings to display; `level` is "ok", "warning" or "error"."""

    name: str
    level: str
    word: str
    faults: tuple[str, ...]
    latency: str = ""
    held: str = ""
    version: str = ""
    uptime: str = ""
    memory: str = ""
    persistence: str = ""


def master_rows(statuses: Iterable[ServerHealth], tolerated: Collection[str]) -> list[MasterRow]:
    """Return a row for each master; `tolerated` are the fault codes that TOLERATE names."""
    return [_row(status, tolerated) for status in statuses]


def _row(status: ServerHealth, tolerated: Collection[str]) -> MasterRow:
    codes = [fault.code for fault in status.faults]
    faults = tuple(fault.text for fault in status.faults)
    health = status.health
    if health is None:
        return MasterRow(name=status.name, level="error", word="no answer", faults=faults)
    if not codes:
        level, word = "ok", "up"
    elif codes == ["untrusted"]:
        is_restarted = (health.ready_in or health.restarted) and not faults[0].startswith(NEW)
        level, word = "warning", "restarted" if is_restarted else "not trusted yet"
    elif status.counted:
        level, word = "warning", "tolerated" if {*codes} & {*tolerated} else "up"
    else:
        level, word = "error", "not counted"
    memory = health.policy
    if health.maxmemory:
        memory += f", {filesizeformat(health.maxmemory)}"
    return MasterRow(
        name=status.name,
        level=level,
        word=word,
        faults=faults,
        latency=f"{number_format(health.latency * 1000, 1)} ms",
        held="?" if health.held is None else number_format(health.held),
        version=f"{health.server} {health.version}".strip(),
        uptime=duration(health.uptime, 0),
        memory=memory,
        persistence="append-only file" if health.persistent else "none",
    )
