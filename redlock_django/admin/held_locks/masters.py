"""Table rows about masters: the health of each, and its state of one lock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from django.template.defaultfilters import filesizeformat
from django.utils.formats import number_format
from django.utils.translation import gettext as _

from redlock_django.admin.labels import duration
from redlock_django.backends.inspection.results import ServerHealth
from redlock_django.engine.inspection.holders import Holding
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
    codes = [code for code, _text in status.faults]
    faults = tuple(text for _code, text in status.faults)
    health = status.health
    if health is None:
        return MasterRow(name=status.name, level="error", word=_("no answer"), faults=faults)
    if not codes:
        level, word = "ok", _("up")
    elif codes == ["untrusted"]:
        is_restarted = health.ready_in and not faults[0].startswith(NEW)
        level, word = "warning", _("restarted") if is_restarted else _("not trusted yet")
    elif tolerated and set(codes) <= set(tolerated):
        level, word = "warning", _("tolerated")
    else:
        level, word = "error", _("not counted")
    memory = health.policy
    if health.maxmemory:
        memory += f", {filesizeformat(health.maxmemory)}"
    return MasterRow(
        name=status.name,
        level=level,
        word=word,
        faults=faults,
        latency=_("%s ms") % number_format(health.latency * 1000, 1),
        held="?" if health.held is None else number_format(health.held),
        version=f"{health.server} {health.version}".strip(),
        uptime=duration(health.uptime, 0),
        memory=memory,
        persistence=_("append-only file") if health.persistent else _("none"),
    )


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The state of a lock on one master: `kind` is "own", "rival", "none" or "silent".

    `width` is the remaining TTL in percent of the longest bar.
    """

    master: str
    kind: str
    words: str
    fingerprint: str = ""
    left: str = ""
    width: str = "0"


def bars(holding: Holding, silent: Mapping[str, str], scale: float) -> list[Bar]:
    """Return a bar for each master of a lock; a full bar is at least `scale` seconds."""
    seen = {s.server: s for s in (*holding.leading, *holding.rivals)}
    own = {s.server for s in holding.leading}
    longest = max([scale, *(s.ttl for s in seen.values() if s.ttl is not None)])
    drawn = []
    for name in holding.servers:
        sighting = seen.get(name)
        if sighting is None:
            if name in silent:
                kind, words = "silent", _("no answer: %s") % silent[name]
            else:
                kind, words = "none", _("not held")
            drawn.append(Bar(master=name, kind=kind, words=words))
            continue
        kind, words = ("own", _("held")) if name in own else ("rival", _("held by another client"))
        ttl = longest if sighting.ttl is None else sighting.ttl
        drawn.append(
            Bar(
                master=name,
                kind=kind,
                words=words,
                fingerprint=sighting.fingerprint,
                left=duration(sighting.ttl),
                width=f"{100 * ttl / longest:.1f}",
            )
        )
    return drawn
