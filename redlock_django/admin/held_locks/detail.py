"""The page of one lock: its holder, its state on each master, and its rivals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redlock_django.admin import labels
from redlock_django.admin.held_locks.shown_locks import ShownLock
from redlock_django.backends.inspection.results import HeldLocks
from redlock_django.engine.inspection.holders import Holding
from redlock_django.engine.protocol.slots import slot_of
from redlock_django.locking.names import printable
from redlock_django.models import HeldLock, moment


def detail_context(seen: Holding, looked: HeldLocks, scale: float) -> dict[str, Any]:
    """Return what the page of a lock shows; `looked` has every slot of its name.

    `scale` is that of `bars`.
    """
    lock = HeldLock.of(looked.using, seen, looked.slots.get(seen.name))
    return {
        "lock": lock,
        "name": printable(seen.name),
        "slot": seen.slot,
        "slots": _slots(looked) if lock.slots is not None else [],
        "limits": labels.different_limits(lock.slots),
        "limits_differ": labels.LIMITS_DIFFER,
        "holder": {name: labels.holder_field(seen.holder, name) for name in seen.holder},
        "where": labels.holder_process(seen.holder),
        "since": labels.time_cell(lock.since),
        "handed_on": labels.handed_on_line(seen.handed_on),
        "minimum_hold": labels.minimum_hold_line(moment(seen.minimum_hold_until)),
        "left": labels.duration(seen.ttl),
        "on_masters": labels.masters_of(seen),
        "waiters": sum(one.waiters for one in looked.locks),
        "missing": labels.missing_text(seen),
        "badge": labels.badge(seen.state),
        "explained": labels.STATES[seen.state.value].explanation,
        "bars": bars(seen, looked.silent, scale),
        "rivals": _rivals(looked.using, seen),
    }


def _slots(looked: HeldLocks) -> list[tuple[int, ShownLock]]:
    """Return the number of each slot that is held, and its lock."""
    return [
        (slot_of(one.resource), _shown(one.fingerprint, looked.using, one)) for one in looked.locks
    ]


def _rivals(alias: str, holding: Holding) -> list[ShownLock]:
    """Return the locks of the other holders of a resource."""
    fingerprints = dict.fromkeys(rival.fingerprint for rival in holding.rivals)
    return [_shown(fingerprint, alias, holding) for fingerprint in fingerprints]


def _shown(fingerprint: str, alias: str, holding: Holding) -> ShownLock:
    return ShownLock(
        id=HeldLock.id_of(fingerprint, alias, holding.resource),
        fingerprint=fingerprint,
        alias=alias,
        resource=holding.resource,
        holding=holding,
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
                kind, words = "silent", f"no answer: {silent[name]}"
            else:
                kind, words = "none", "not held"
            drawn.append(Bar(master=name, kind=kind, words=words))
            continue
        kind, words = ("own", "held") if name in own else ("rival", "held by another client")
        ttl = longest if sighting.ttl is None else sighting.ttl
        drawn.append(
            Bar(
                master=name,
                kind=kind,
                words=words,
                fingerprint=sighting.fingerprint,
                left=labels.duration(sighting.ttl),
                width=f"{100 * ttl / longest:.1f}",
            )
        )
    return drawn
