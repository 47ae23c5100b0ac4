"""Versions of rows: whether a row is still the one that a page has shown.

The version of a row is a digest of each of its columns, so it needs no column of its own. Digests
are keyed with SECRET_KEY: a page does not reveal what it does not show.
"""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from django.conf import settings
from django.db import connections, models
from django.db.models import F
from django.utils.encoding import force_bytes

from redlock_django.exceptions import InvalidRedlock

Version = Mapping[str, str]
"""The digest of each column of a row by the field's name, and of each many-to-many field."""

Sets = Mapping[str, Sequence[str]]
"""The primary keys in each many-to-many field, by its name."""

NO_SETS: Sets = MappingProxyType({})
"""The default of `Sets`."""

_LENGTH = 12  # bytes of a digest: a change is missed once in 2^96 times


def _secrets() -> list[bytes]:
    """Return the keys that a page may have been made with: SECRET_KEY may have been rotated."""
    every = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return [sha256(b"redlock_django.edit_locks " + force_bytes(one)).digest() for one in every]


def _digest(secret: bytes, *of: str | None) -> str:
    found = hmac.digest(secret, json.dumps(of).encode(), "sha256")
    return urlsafe_b64encode(found[:_LENGTH]).decode()


def columns(model: type[models.Model]) -> list[models.Field[Any, Any]]:
    """Return the fields of a model that are stored in its row, without generated ones."""
    return [one for one in model._meta.concrete_fields if not getattr(one, "generated", False)]


def _text(row: models.Model, field: models.Field[Any, Any]) -> str | None:
    """Return a value as a string that is the same whenever the row is read."""
    value = getattr(row, field.attname)
    if value is None:
        return None
    # value_to_string() of a JSONField returns the stored value, which need not be a string.
    text: Any = str(value) if field.is_relation else field.value_to_string(row)
    return json.dumps(text, sort_keys=True, default=str)


def _version(secret: bytes, row: models.Model, names: Iterable[str], sets: Sets) -> Version:
    label, pk = row._meta.label, str(row.pk)
    made = {name: _text(row, row._meta.get_field(name)) for name in names}  # type: ignore[arg-type]
    made |= {name: json.dumps(sorted(pks)) for name, pks in sets.items()}
    return {name: _digest(secret, label, pk, name, text) for name, text in made.items()}


def version_of(row: models.Model, names: Iterable[str], sets: Sets) -> Version:
    """Return the version of a row, of the columns `names` and the many-to-many fields `sets`."""
    return _version(_secrets()[0], row, names, sets)


def changed_since(
    shown: Version, row: models.Model, names: Iterable[str], sets: Sets
) -> frozenset[str]:
    """Return the names of the fields in which a row is not the one that was shown.

    A column that the page did not know is not compared: a deployment may have added it since.
    """
    asked = [name for name in names if name in shown]
    kept = {name: pks for name, pks in sets.items() if name in shown}
    differences = [
        frozenset(name for name, digest in one.items() if shown[name] != digest)
        for one in (_version(secret, row, asked, kept) for secret in _secrets())
    ]
    return min(differences, key=len)


def row_version(row: models.Model, ignored: Iterable[str] = (), sets: Sets = NO_SETS) -> str:
    """Return the version of a whole row in one digest, of the columns that have been loaded."""
    return _row_version(_secrets()[0], row, row.get_deferred_fields(), ignored, sets)


def _row_version(
    secret: bytes, row: models.Model, deferred: Iterable[str], ignored: Iterable[str], sets: Sets
) -> str:
    missing, left_out = sorted(deferred), {*deferred, *ignored}
    shown = [one for one in columns(type(row)) if not left_out & {one.name, one.attname}]
    texts = [text for one in shown for text in (one.attname, _text(row, one))]
    for name in sorted(sets.keys() - left_out):
        texts += [name, json.dumps(sorted(sets[name]))]
    digest = _digest(secret, row._meta.concrete_model._meta.label, str(row.pk), *texts)  # type: ignore[union-attr]
    return " ".join([digest, *missing])


def is_row(
    row: models.Model, shown: str, ignored: Iterable[str] = (), sets: Sets = NO_SETS
) -> bool:
    """Return whether a row is the one that was shown with this `row_version`."""
    digest, *deferred = shown.split(" ")
    known = {one.attname for one in columns(type(row))} & {*deferred}
    found = [_row_version(secret, row, known, ignored, sets) for secret in _secrets()]
    return digest in {one.split(" ")[0] for one in found}


def parsed_versions(sent: str) -> Version:
    """Return the versions that a page has sent as JSON, by field or row; empty if it is none."""
    try:
        found = json.loads(sent)
    except ValueError:
        return {}
    is_version = isinstance(found, dict) and all(isinstance(one, str) for one in found.values())
    return found if is_version else {}


def locked_rows(
    model: type[models.Model], pks: Iterable[Any], using: str
) -> dict[Any, models.Model]:
    """Return the current rows by primary key, locked until the end of the transaction.

    They are in one order for all callers, so that two editors of several rows do not deadlock.
    Raises InvalidRedlock for a database in which a save could overwrite a change unseen.
    """
    connection = connections[using]
    _check_database(using)
    for one in (model, *model._meta.get_parent_list()):
        _check_table(using, one._meta.db_table)
    rows: models.QuerySet[Any] = (
        models.QuerySet(model, using=using).filter(pk__in=[*pks]).order_by("pk")
    )
    if not connection.features.has_select_for_update:
        # SQLite: only a write takes the lock that excludes other writers. It changes nothing.
        (name, *_) = _key_names(model)
        rows.order_by().update(**{name: F(name)})
    return {row.pk: row for row in rows.select_for_update()}


def _key_names(model: type[models.Model]) -> Sequence[str]:
    fields = getattr(model._meta, "pk_fields", None) or [model._meta.pk]  # Django 5.2: composite
    return [one.name for one in fields]


def locked_sets(row: models.Model, names: Iterable[str], using: str) -> dict[str, list[str]]:
    """Return the primary keys in many-to-many fields of a locked row, locked as well.

    The lock of the row keeps others from adding any: the database checks the foreign key. Fields of
    django-taggit are read only: their links need not have one.
    """
    found = {}
    for name in names:
        field = row._meta.get_field(name)
        if isinstance(field, models.ManyToManyField):
            _lock_links(row, field, using)
        found[name] = keys(getattr(row, name).using(using).all())
    return found


def _lock_links(row: models.Model, field: Any, using: str) -> None:
    _check_table(using, field.m2m_db_table())
    through: models.QuerySet[Any] = models.QuerySet(field.remote_field.through, using=using)
    links = through.filter(**{field.m2m_field_name(): row})
    list(links.order_by("pk").select_for_update().values_list("pk"))


def keys(rows: Iterable[Any]) -> list[str]:
    """Return the primary keys of rows as strings."""
    return [str(getattr(row, "pk", row)) for row in rows]


_UNSAFE = """
SELECT tables.engine FROM information_schema.tables AS tables
JOIN information_schema.engines AS engines ON engines.engine = tables.engine
WHERE tables.table_schema = DATABASE() AND tables.table_name = %s
AND engines.transactions <> 'YES'"""

_checked: set[tuple[str, ...]] = set()
"""The tables that have transactions: of a server and a database, each with its name."""


def _check_table(using: str, table: str) -> None:
    """Raise InvalidRedlock for a table of MySQL or MariaDB without transactions."""
    connection = connections[using]
    where = (*(str(connection.settings_dict[key]) for key in ("HOST", "PORT", "NAME")), table)
    if connection.vendor != "mysql" or where in _checked:
        return
    with connection.cursor() as cursor:
        cursor.execute(_UNSAFE, [table])
        found = cursor.fetchone()
    if found is not None:
        raise InvalidRedlock(
            f"the table {table!r} of {using!r} has the engine {found[0]}, which has no "
            "transactions, so a save could overwrite what another editor has saved. Write "
            f"ALTER TABLE {table} ENGINE=InnoDB"
        )
    _checked.add(where)


def _check_database(using: str) -> None:
    connection = connections[using]
    if not connection.in_atomic_block:
        raise InvalidRedlock(
            f"rows of {using!r} are compared outside of a transaction, so they may change before "
            "they are saved. Validate the form inside transaction.atomic(using=...), which "
            "EditLockMixin and EditLockViewMixin begin for their own views"
        )
    if connection.vendor != "mysql" and not connection.features.supports_transactions:
        raise InvalidRedlock(
            f"the database {using!r} has no transactions, so a save could overwrite what another "
            "editor has saved. Keep the rows in another database"
        )
    level = getattr(connection, "isolation_level", None) or "the default of the server"
    if connection.vendor == "mysql" and level not in ("read committed", "read uncommitted"):
        raise InvalidRedlock(
            f"the transactions of {using!r} are at {level}, where a save may be computed from rows "
            "that others have changed. Remove 'isolation_level' from its OPTIONS: Django's default "
            "is read committed"
        )
