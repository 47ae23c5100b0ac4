"""The rows that a revert of django-reversion writes or deletes: all rows of its revision.

A revision has each row that was saved by one request, of any model, and the rows that these follow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.db import models, router
from django.db.models.deletion import Collector
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst

from redlock_django.edit_locks.saving_transaction import SavingTransaction
from redlock_django.edit_locks.versions import (
    is_row,
    locked_rows,
    locked_sets,
    parsed_versions,
    row_version,
)

RESTORED = "_edit_restored"
"""The name of the input with the versions of all rows that a revert writes or deletes."""

Ignored = Callable[[type[models.Model]], frozenset[str]]
"""Return the columns of a model whose changes are no conflict."""

Groups = Mapping[tuple[str, type[models.Model]], Mapping[str, Any]]
"""The versions of a revision by database and model, then by the key of their row."""


@dataclass(frozen=True, kw_only=True)
class RestoredRow:
    """A row that is reverted, or that is deleted because its revision does not have it."""

    using: str
    model: type[models.Model]
    object_id: str
    name: str
    row: models.Model | None
    """The row as it is now, locked; None if it is deleted."""
    sets: Mapping[str, Sequence[str]]
    """The primary keys in the many-to-many fields that are reverted, too."""
    ignored: frozenset[str]
    version_pk: Any = None
    """The primary key of the version to which it is reverted, None if it is deleted instead."""

    @property
    def key(self) -> str:
        """The key of the row in the input of a page."""
        return f"{self.using} {self.model._meta.label} {self.object_id}"

    @property
    def version(self) -> str:
        """The version of the row as it is now, "" if it is deleted."""
        return "" if self.row is None else row_version(self.row, self.ignored, self.sets)

    def is_as_shown(self, shown: str | None) -> bool:
        """Return whether the row is the one that a page has shown with this version."""
        if self.row is None or not shown:
            return self.row is None and shown == ""
        return is_row(self.row, shown, self.ignored, self.sets)


def restored_input(rows: Sequence[RestoredRow]) -> SafeString:
    """Return the input that carries the versions of all rows."""
    versions = json.dumps({one.key: one.version for one in rows})
    return format_html('<input type="hidden" name="{}" value="{}">', RESTORED, versions)


def changed_rows(rows: Sequence[RestoredRow], sent: str) -> list[RestoredRow]:
    """Return the rows that are not as a page has shown them, by what its input has sent."""
    shown = parsed_versions(sent)
    return [one for one in rows if not one.is_as_shown(shown.get(one.key))]


def restored_rows(
    version: Any, own: type[models.Model], ignored: Ignored, transaction: SavingTransaction
) -> list[RestoredRow]:
    """Return all rows that a revert to this version writes or deletes, locked.

    They are locked in one order for all callers, those of the model `own` first, as its change form
    locks them. Others cannot recover the deleted ones until the end of the transaction.
    """
    groups = _groups(version, own)
    _lock_versions(version, groups, transaction)
    found = [one for group in groups for one in _rows_of(group, groups[group], ignored)]
    for using in {using: None for using, _ in groups}:
        found += _deleted_rows(using, found, ignored)
    return found


def _groups(version: Any, own: type[models.Model]) -> Groups:
    groups: dict[tuple[str, Any], dict[str, Any]] = {}
    for one in version.revision.version_set.order_by("pk"):
        place = (one.db, one.content_type.model_class())
        groups.setdefault(place, {})[one.object_id] = one

    def order(place: tuple[str, Any]) -> tuple[str, bool, str]:
        using, model = place
        return using, model is not own, model._meta.label

    return {place: groups[place] for place in sorted(groups, key=order)}


def _lock_versions(version: Any, groups: Groups, transaction: SavingTransaction) -> None:
    """Lock the oldest version of each row, as everybody does who reverts or recovers one.

    A row that is deleted cannot be locked itself.
    """
    versions = type(version)
    using = router.db_for_write(versions)
    oldest: list[int] = []
    for (database, model), group in groups.items():
        every = versions.objects.using(using).get_for_model(model, database)
        named = every.filter(object_id__in=[*group]).order_by().values("object_id")
        oldest += [one["oldest"] for one in named.annotate(oldest=models.Min("pk"))]
    for database in sorted({using, *(database for database, _ in groups)}):
        transaction.begin(database)
    locked_rows(versions, oldest, using)


def _rows_of(
    place: tuple[str, type[models.Model]], versions: Mapping[str, Any], ignored: Ignored
) -> Iterator[RestoredRow]:
    """Yield a row for each version of one model."""
    from reversion.revisions import _get_options

    using, model = place
    options = _get_options(model)
    field = getattr(options, "object_id_field", "pk")  # since django-reversion 6.1
    every: models.QuerySet[Any] = models.QuerySet(model, using=using)
    pks = every.filter(**{f"{field}__in": [*versions]}).values_list("pk", flat=True)
    locked = locked_rows(model, [*pks], using)
    rows = {str(getattr(row, field)): row for row in locked.values()}
    fields: Any = model._meta.many_to_many
    many = [one for one in fields if one.name in options.fields]
    names = [one.name for one in many if one.remote_field.through._meta.auto_created]
    for key in sorted(versions):
        row, version = rows.get(key), versions[key]
        yield RestoredRow(
            using=using,
            model=model,
            object_id=key,
            name=_name(model, version.object_repr if row is None else row),
            row=row,
            sets={} if row is None else locked_sets(row, names, using),
            ignored=ignored(model),
            version_pk=version.pk,
        )


def _deleted_rows(
    using: str, restored: Sequence[RestoredRow], ignored: Ignored
) -> Iterator[RestoredRow]:
    """Yield the rows of a database that are deleted, because the revision does not have them."""
    kept = [one.row for one in restored if one.row is not None and one.row._state.db == using]
    for model, pks in _collected(using, kept):
        rows = locked_rows(model, pks, using)
        for pk, row in rows.items():
            yield RestoredRow(
                using=using,
                model=model,
                object_id=str(pk),
                name=_name(model, row),
                row=row,
                sets={},
                ignored=ignored(model),
            )


def _collected(using: str, kept: Sequence[models.Model]) -> list[tuple[type[models.Model], Any]]:
    """Return the primary keys of the rows that the followed rows and their cascades delete."""
    from reversion.revisions import _follow_relations_recursive

    followed = {one for row in kept for one in _follow_relations_recursive(row)} - {*kept}
    groups: dict[type[models.Model], list[models.Model]] = {}
    for one in followed:
        groups.setdefault(type(one), []).append(one)
    collector = Collector(using=using)
    with suppress(models.ProtectedError):  # then django-reversion refuses the revert
        for rows in groups.values():
            collector.collect(rows)
    found: dict[type[models.Model], set[Any]] = {}
    for every in [*collector.data.values(), *collector.fast_deletes]:
        for row in every:
            found.setdefault(type(row), set()).add(row.pk)
    return sorted(found.items(), key=lambda one: one[0]._meta.label)


def _name(model: type[models.Model], row: Any) -> str:
    """Return the name of a row as Django's admin shows what is deleted with others."""
    return f"{capfirst(model._meta.verbose_name)}: {row}"
