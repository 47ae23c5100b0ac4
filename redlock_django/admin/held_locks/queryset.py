"""A queryset of held locks without a database table, for Django's change list."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from django.core.exceptions import FieldError
from django.db import models

from redlock_django.admin.held_locks.filters import PAGE
from redlock_django.backends.inspection.contract import Inspection
from redlock_django.engine.inspection.holders import Holding, HoldingState
from redlock_django.exceptions import BadResource
from redlock_django.locking.names import check_resource
from redlock_django.locking.services import locks
from redlock_django.models import HeldLock
from redlock_django.operate.inspection import ORDERS, HeldLocks, PageQuery, held_locks, who_holds

COUNTED = 500
"""The number of locks whose states are counted on every page; they are read by one query."""


@dataclass(frozen=True, kw_only=True)
class Asked(PageQuery):
    """The parameters of a query: a page of an alias, or the locks with these `ids`."""

    limit: int = PAGE
    count: int = COUNTED
    alias: str = "default"
    ids: tuple[str, ...] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The parameters of the page."""
        return {field.name: getattr(self, field.name) for field in fields(PageQuery)}


class HeldLockQuerySet(models.QuerySet[HeldLock]):
    """A lazy queryset that queries the masters once, when its length or rows are first needed.

    It supports the lookups that the change list uses, and raises FieldError for others.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked = Asked()
        self.inspection: Inspection | None = None
        self._page: HeldLocks | None = None

    def of_alias(self, alias: str) -> Self:
        """Return the locks of another alias."""
        return self._asking(alias=alias)

    def in_state(self, state: HoldingState) -> Self:
        """Return the locks in one state."""
        return self._asking(state=state)

    def searching(self, part: str) -> Self:
        """Return the locks whose resource contains `part`."""
        return self._asking(search=part)

    def with_prefix(self, prefix: str) -> Self:
        """Return the locks whose resource begins with `prefix`."""
        return self._asking(prefix=prefix)

    def of_holder(self, words: str) -> Self:
        """Return the locks whose holder fits every word."""
        return self._asking(holder=words)

    def starting_at(self, start: int) -> Self:
        """Return the page that begins at the offset `start`."""
        return self._asking(offset=start)

    def filter(self, *args: Any, **kwargs: Any) -> Self:
        """Return the locks with an id or with one of several; other lookups raise FieldError."""
        if not kwargs and not any(args):
            return self._clone()
        if not args and len(kwargs) == 1:
            ((lookup, value),) = kwargs.items()
            if lookup in ("pk", "id"):
                return self._asking(ids=(str(value),))
            if lookup in ("pk__in", "id__in"):
                return self._asking(ids=tuple(map(str, value)))
        raise FieldError("held locks are not in a database table and can be filtered by id only")

    def order_by(self, *field_names: Any) -> Self:
        """Order by the first of these fields that the masters can sort by."""
        known = [name for name in field_names if name in ORDERS]
        return self._asking(order=known[0]) if known else self._clone()

    def count(self) -> int:
        """Return the number of locks on all pages."""
        return len(self) if self.asked.ids is not None else self.page.total

    @property
    def ordered(self) -> bool:
        """Return True: the masters return locks in an order."""
        return True

    @property
    def page(self) -> HeldLocks:
        """The page of locks; the first access queries the masters."""
        if self._page is None:
            self._page = held_locks(
                self.asked.alias, inspection=self.inspection, **self.asked.options
            )
        return self._page

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice) and self.asked.ids is None:
            start, stop = key.start or 0, key.stop
            page = self if start == self.asked.offset else self.starting_at(start)
            return list(page)[: None if stop is None else stop - start]
        return list(self)[key]

    def _asking(self, **what: Any) -> Self:
        clone = self._clone()
        clone.asked = replace(self.asked, **what)
        clone._page = None
        return clone

    # Overrides of private QuerySet methods, tested by tests/operate/test_admin_list.py.

    def _clone(self) -> Self:
        clone: Self = super()._clone()  # type: ignore[misc]
        clone.asked, clone.inspection, clone._page = self.asked, self.inspection, self._page
        return clone

    def _fetch_all(self) -> None:
        if self._result_cache is None:
            self._result_cache = list(self._rows())

    def _rows(self) -> Iterable[HeldLock]:
        if self.asked.ids is not None:
            return by_ids(self.asked.ids, self.inspection)
        return [HeldLock.of(self.asked.alias, holding) for holding in self.page.locks]


def by_ids(ids: Iterable[str], inspection: Inspection | None = None) -> list[HeldLock]:
    """Return the locks with these ids that are still held, in the order of `ids`."""
    wanted: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for lock_id in ids:
        try:
            fingerprint, alias, resource = HeldLock.parts(lock_id)
        except ValueError:
            continue
        if alias in locks:
            wanted[alias].append((fingerprint, resource))
    found = []
    for alias, pairs in wanted.items():
        holdings = now_held(alias, [resource for _, resource in pairs], inspection)
        for fingerprint, resource in pairs:
            seen = led_by(fingerprint, holdings[resource]) if resource in holdings else None
            if seen is not None:
                found.append(HeldLock.of(alias, seen))
    return found


def now_held(
    alias: str, resources: Iterable[str], inspection: Inspection | None = None
) -> dict[str, Holding]:
    """Return the current holding of each resource that is held; skip invalid names."""
    names = []
    for resource in resources:
        try:
            names.append(check_resource(resource))
        except BadResource:
            continue
    found = who_holds(*names, using=alias, inspection=inspection)
    return {held.resource: held for held in found.locks}


def led_by(fingerprint: str, holding: Holding) -> Holding | None:
    """Return the holding with the holder of this fingerprint as leader, None if it has none."""
    sightings = (*holding.leading, *holding.rivals)
    own = tuple(s for s in sightings if s.fingerprint == fingerprint)
    others = tuple(s for s in sightings if s.fingerprint != fingerprint)
    return replace(holding, leading=own, rivals=others) if own else None
