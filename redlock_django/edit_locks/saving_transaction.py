"""The transactions in which one request compares rows and saves them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Self

from django.db import connections, models, transaction

from redlock_django.edit_locks.inserted_rows import KeyTaken

Editors = Callable[[Sequence[models.Model]], Sequence[tuple[models.Model, object]]]
"""Return those rows that other editors keep from being saved, each with its editor."""


class SavingTransaction(ExitStack):
    """The transactions in which one request compares rows and saves them."""

    def __init__(self) -> None:
        super().__init__()
        self.compared: list[object] = []
        self.locked: tuple[models.Model, models.Model | None] | None = None
        """A row, and the same as it was when it was locked; None if it has been deleted."""
        self.is_row_compared = False
        """True if a row was compared for a form that does not compare it itself."""
        self.is_form = False
        """True while a form with a row is saved."""
        self.shows_form = False
        """True until the row of a change form has been read."""
        self.is_deleted = False
        """True if that row has been deleted."""
        self.reverted: list[models.Model | None] = []
        """The row that a form with the values of an old version replaces, None if it is deleted."""
        self.taken: KeyTaken | None = None
        """The key that another has taken, after this request had found no row with it."""
        self.page = ""
        """The id of the page that shows the form."""
        self.editors_of: Editors = lambda rows: []
        self._views = 0  # a view may run inside another one

    def __enter__(self) -> Self:
        self._views += 1
        return self

    def __exit__(self, *error: object) -> bool:
        self._views -= 1
        if self._views:
            return False
        self.locked = None  # others may change it from now on
        close: Callable[..., Any] = super().__exit__
        return bool(close(*error))

    @property
    def is_active(self) -> bool:
        """True while a view runs."""
        return self._views > 0

    def begin(self, using: str) -> None:
        """Begin a transaction of a database, unless one is open that outlasts the save."""
        if self.is_active and not connections[using].in_atomic_block:
            self.enter_context(transaction.atomic(using=using))


def transaction_of(request: Any, *, renew: bool = False) -> SavingTransaction:
    """Return the transactions of a request; `renew` for the view that is about to begin."""
    found: SavingTransaction | None = getattr(request, "_redlock_saving", None)
    if found is None or (renew and not found.is_active):
        found = request._redlock_saving = SavingTransaction()
    return found
