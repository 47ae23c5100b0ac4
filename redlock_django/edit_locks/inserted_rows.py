"""Rows that are to be inserted: Django would update a row that has their key by then.

A form finds a row that has its key while it is validated, but no database can lock a row that does
not exist. So the save must be an INSERT, which the database refuses if another was faster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from django.db import IntegrityError, models, router, transaction

Keys = dict[type[models.Model], Any]
"""The primary key of a row in its own table and in those of its parents."""


class KeyTaken(IntegrityError):
    """A row was not inserted, because another has inserted one with its key meanwhile."""

    def __init__(self, model: type[models.Model], using: str, form: str | None) -> None:
        super().__init__(f"{model._meta.label} has a row with this primary key")
        self.model, self.using = model, using
        self.form = form
        """The prefix of the form of the row."""


def keys_of(row: models.Model) -> Keys:
    """Return the primary keys of a row."""
    return {
        one: getattr(row, one._meta.pk.attname) for one in (type(row), *row._meta.get_parent_list())
    }


def insert_only(
    row: models.Model, tables: Collection[type[models.Model]], *, form: str | None = None
) -> None:
    """Make the next save of a row insert it into the tables of these models and their children.

    It raises KeyTaken if one of them has its key. A copy of the row is saved as usual, and so is
    the row after that.
    """
    model, own_table = type(row), row._meta.concrete_model

    def save_base(raw: bool = False, **options: Any) -> None:
        for name in own:
            vars(row).pop(name, None)
        if all(pk is None for pk in keys_of(row).values()):
            return model.save_base(row, raw=raw, **options)
        using = options.get("using") or router.db_for_write(model, instance=row)
        # A raw save leaves the tables of parents as they are.
        inserted = tuple(one for one in tables if one is own_table or not raw)
        options |= {"using": using, "force_insert": inserted}
        try:
            with transaction.atomic(using=using):
                model.save_base(row, raw=raw, **options)
        except BaseException as error:
            vars(row).update(own)
            if isinstance(error, IntegrityError) and (taken := _taken(row, inserted, using)):
                raise KeyTaken(taken, using, form) from error
            raise

    def state() -> dict[str, Any]:
        return {name: one for name, one in model.__getstate__(row).items() if name not in own}

    own = {"save_base": save_base, "__getstate__": state}
    vars(row).update(own)


def _taken(
    row: models.Model, tables: Iterable[type[models.Model]], using: str
) -> type[models.Model] | None:
    """Return the first of these models that has a row with the key of this row."""
    for model in tables:
        rows: models.QuerySet[Any] = models.QuerySet(model, using=using)
        pk = keys_of(row)[model]
        if pk is not None and rows.filter(pk=pk).exists():
            return model
    return None
