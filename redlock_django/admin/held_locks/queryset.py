"""A queryset of held locks without a database table, for Django's change list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from django.core.exceptions import FieldError
from django.db import models

from redlock_django.admin.held_locks.filters import PAGE
from redlock_django.admin.held_locks.shown_locks import shown_locks
from redlock_django.backends.inspection.contract import Inspection
from redlock_django.backends.inspection.filter import LockFilter
from redlock_django.models import HeldLock
from redlock_django.operate.inspection import ORDERS, HeldLocks, held_locks


@dataclass(frozen=True, kw_only=True)
class Asked(LockFilter):
    """The parameters of a query: a page of an alias, or the locks with these `ids`."""

    offset: int = 0
    alias: str = "default"
    ids: tuple[str, ...] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The parameters of the filter."""
        return {field.name: getattr(self, field.name) for field in fields(LockFilter)}


class HeldLockQuerySet(models.QuerySet[HeldLock]):
    """A lazy queryset that queries the masters once, when its length or rows are first needed.

    It supports the lookups that the change list uses, and raises FieldError for others.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked = Asked()
        self.inspection: Inspection | None = None
        self._page: HeldLocks | None = None

    def asking(self, **what: Any) -> Self:
        """Return the locks for other parameters: fields of `Asked`."""
        clone = self._clone()
        clone.asked = replace(self.asked, **what)
        clone._page = None
        return clone

    def filter(self, *args: Any, **kwargs: Any) -> Self:
        """Return the locks with an id or with one of several; other lookups raise FieldError."""
        if not kwargs and not any(args):
            return self._clone()
        if not args and len(kwargs) == 1:
            ((lookup, value),) = kwargs.items()
            if lookup in ("pk", "id"):
                return self.asking(ids=(str(value),))
            if lookup in ("pk__in", "id__in"):
                return self.asking(ids=tuple(map(str, value)))
        raise FieldError("held locks are not in a database table and can be filtered by id only")

    def order_by(self, *field_names: Any) -> Self:
        """Order by the first of these fields that the masters can sort by."""
        known = [name for name in field_names if name in ORDERS]
        return self.asking(order=known[0]) if known else self._clone()

    def count(self) -> int:
        """Return the number of locks on all pages."""
        return len(self) if self.asked.ids is not None else len(self.page.locks)

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
            page = self if start == self.asked.offset else self.asking(offset=start)
            return list(page)[: None if stop is None else stop - start]
        return list(self)[key]

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
            shown = shown_locks(self.asked.ids, self.inspection)
            return [one.lock for one in shown if one.lock is not None]
        page = self.page
        return [
            HeldLock.of(self.asked.alias, holding, page.slots.get(holding.name))
            for holding in page.locks[self.asked.offset : self.asked.offset + PAGE]
        ]
