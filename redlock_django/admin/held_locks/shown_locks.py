"""Locks that a page has shown, looked up again by their ids."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from django.utils.safestring import SafeString

from redlock_django.admin.labels import (
    age,
    duration,
    holder_cell,
    holder_process,
    lock_name,
    masters_of,
)
from redlock_django.backends.inspection.contract import Inspection
from redlock_django.engine.inspection.holders import Holding
from redlock_django.locking.names import is_resource
from redlock_django.locking.services import locks
from redlock_django.models import HeldLock
from redlock_django.operate.inspection import who_holds


@dataclass(frozen=True, kw_only=True)
class ShownLock:
    """A lock that was shown, with the strings that pages show of it.

    `holding` is what the servers report about the resource now, None if it is not held.
    """

    id: str
    fingerprint: str
    alias: str
    resource: str
    holding: Holding | None

    @cached_property
    def lock(self) -> HeldLock | None:
        """The lock, None if it is no longer held."""
        own = led_by(self.fingerprint, self.holding)
        return HeldLock.of(self.alias, own) if own is not None else None

    @property
    def name(self) -> str:
        """The name, and the slot if it has a limit, as a printable string."""
        return lock_name(self.resource, self.lock.holding.holder if self.lock else {})

    @property
    def instead(self) -> str:
        """Why the lock is no longer held."""
        return "" if self.lock else replacement_text(self.holding)

    @property
    def owner(self) -> str:
        """The holder's process, and the path and user of its request."""
        return holder_cell(self.lock.holding.holder) if self.lock else ""

    @property
    def age(self) -> str:
        """How long the lock has been held."""
        return (age(self.lock.since) or "unknown") if self.lock else ""

    @property
    def left(self) -> str:
        """After how long the lock expires unless it is renewed."""
        return duration(self.lock.ttl) if self.lock else ""

    @property
    def masters(self) -> SafeString | str:
        """How many masters store the lock."""
        return masters_of(self.lock.holding) if self.lock else ""


def shown_locks(ids: Iterable[str], inspection: Inspection | None = None) -> list[ShownLock]:
    """Ask the servers about the locks with these ids, in their order; skip invalid ids."""
    parts = list(parts_of(ids))
    wanted: dict[str, list[str]] = defaultdict(list)
    for _id, _fingerprint, alias, resource in parts:
        if is_resource(resource):
            wanted[alias].append(resource)
    found = {
        (alias, holding.resource): holding
        for alias, resources in wanted.items()
        for holding in who_holds(*resources, using=alias, inspection=inspection).locks
    }
    return [
        ShownLock(
            id=lock_id,
            fingerprint=fingerprint,
            alias=alias,
            resource=resource,
            holding=found.get((alias, resource)),
        )
        for lock_id, fingerprint, alias, resource in parts
    ]


def parts_of(ids: Iterable[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield each id once, with its fingerprint, alias and resource; skip invalid ids."""
    for lock_id in dict.fromkeys(ids):
        try:
            fingerprint, alias, resource = HeldLock.parts(lock_id)
        except ValueError:
            continue
        if alias in locks:
            yield lock_id, fingerprint, alias, resource


def led_by(fingerprint: str, holding: Holding | None) -> Holding | None:
    """Return the holding with the holder of this fingerprint as leader, None if it has none."""
    if holding is None:
        return None
    sightings = (*holding.leading, *holding.rivals)
    own = tuple(s for s in sightings if s.fingerprint == fingerprint)
    others = tuple(s for s in sightings if s.fingerprint != fingerprint)
    return replace(holding, leading=own, rivals=others) if own else None


def replacement_text(holding: Holding | None) -> str:
    """Return a sentence about why a lock is no longer held, and about the new holder."""
    if holding is None:
        return "It is no longer held."
    where = holder_process(holding.holder) or "another client"
    return f"It has been released, and was acquired by {where} (lock {holding.fingerprint})."
