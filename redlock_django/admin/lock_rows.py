"""Rows of the list of held locks: strings, in printable characters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone
from django.utils.formats import number_format
from django.utils.timesince import timesince
from django.utils.translation import override

from redlock_django.backends.inspection.results import HeldLocks, SlotsHeld
from redlock_django.engine.inspection.holders import Holding
from redlock_django.engine.inspection.printable import printable
from redlock_django.locking.names import is_resource

_LATEST = datetime.max.replace(tzinfo=UTC).timestamp() - 86_400


def rows_of(found: HeldLocks) -> Iterator[dict[str, Any]]:
    """Yield a row for each lock, and for each rival of one that no holder has."""
    for holding in found.locks:
        yield row_of(holding, found.slots.get(holding.name))
        for rival in holding.by_holder()[1:] if holding.rivals else ():
            yield row_of(rival, None)


def row_of(holding: Holding, slots: SlotsHeld | None) -> dict[str, Any]:
    """Return what the list shows of a lock."""
    holder, since = holding.holder, _moment(holding.since)
    return {
        "id": f"{holding.fingerprint}:{holding.resource}" if is_resource(holding.resource) else "",
        "name": printable(holding.name),
        "label": printable(holding.label),
        "lines": list(_slot_lines(holding.slot, slots)),
        "fingerprint": holding.fingerprint,
        "process": _process(holder),
        "path": _field(holder, "path"),
        "user": _field(holder, "user"),
        "since": _shown(since) if since else None,
        "at": since.isoformat(timespec="seconds") if since else "",
        "age": age(since) if since else "",
        "left": "never expires" if holding.ttl is None else duration(holding.ttl),
        "count": f"{len(holding.leading)}/{len(holding.servers)}",
        "missing": holding.missing,
        "state": holding.state.value,
        "notes": list(_notes(holding)),
    }


def _slot_lines(slot: int | None, held: SlotsHeld | None) -> Iterator[str]:
    """Yield "slot 1 · 2/3 held", nothing for a lock, and the limits if they differ."""
    if slot is not None:
        yield f"slot {slot} · {held} held" if held is not None else f"slot {slot}"
    if held is not None and len(held.limits) > 1:
        yield f"different limits: {', '.join(map(str, held.limits))}"


def _notes(holding: Holding) -> Iterator[str]:
    """Yield what there is to say about a lock beside its state."""
    if holding.handed_on:
        yield "handed on, not yet taken"
    until = _moment(holding.minimum_hold_until)
    if until is not None and until > datetime.now(UTC):
        yield f"minimum hold until {timezone.localtime(until):%H:%M:%S}"
    if holding.waiters:
        many = number_format(holding.waiters)
        yield f"{many} {'waiter' if holding.waiters == 1 else 'waiters'}"


def held_by(fingerprint: str, holding: Holding | None) -> Holding | None:
    """Return the lock with this fingerprint on a resource, None if it is no longer held."""
    if holding is None:
        return None
    if holding.fingerprint == fingerprint:
        return holding
    rivals = (one for one in holding.by_holder() if one.fingerprint == fingerprint)
    return next(rivals, None)


def replacement(holding: Holding | None) -> str:
    """Return a sentence about a lock that is no longer held, and about the new holder."""
    if holding is None:
        return "It is no longer held."
    where = _process(holding.holder) or "another client"
    return f"It has been released, and was acquired by {where} (lock {holding.fingerprint})."


def _field(holder: Mapping[str, Any], name: str) -> str:
    return printable(str(holder[name])) if holder.get(name) not in (None, "") else ""


def _process(holder: Mapping[str, Any]) -> str:
    """Return the host, process id, app and release of a holder, as far as they are known."""
    pid = _field(holder, "pid")
    host, app, release = (_field(holder, name) for name in ("host", "app", "release"))
    return " · ".join(filter(None, (host, f"pid {pid}" if pid else "", app, release)))


def duration(seconds: float, digits: int = 1) -> str:
    """Return a duration in seconds, minutes or hours; below 20 s with so many digits."""
    if seconds < 100:
        return f"{number_format(seconds, digits if seconds < 20 else 0)} s"
    minutes = int(seconds // 60)
    if minutes < 120:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{minutes // 60} h {minutes % 60} min"


def age(since: datetime) -> str:
    """Return how long ago a time was, by the local clock."""
    passed = (datetime.now(UTC) - since).total_seconds()
    if passed < 7200:
        return duration(max(0.0, passed), 0)
    with override("en"):  # as the words around it
        return timesince(since)


def _moment(seconds: float | None) -> datetime | None:
    """Return seconds since 1970 as a datetime; None if a time zone could put it after year 9999."""
    # Any client of a server can write any number there.
    return None if seconds is None or seconds > _LATEST else datetime.fromtimestamp(seconds, UTC)


def _shown(moment: datetime) -> str:
    """Return the time of day, or the date if it is not today."""
    local = timezone.localtime(moment)
    is_today = local.date() == timezone.localtime(datetime.now(UTC)).date()
    return f"{local:%H:%M:%S}" if is_today else f"{local:%Y-%m-%d %H:%M}"
