"""`manage.py redlock_purge`: what it purges and refuses.

What is deleted of locks is in tests/contract/test_database_purge.py, of records in
tests/idempotency/test_records_commands.py.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import Error, InterfaceError, OperationalError, connection, connections
from django.db.models import QuerySet
from django.utils import timezone

from redlock_django.backends.database.backend import DatabaseBackend
from redlock_django.backends.database.dialects import LOCKS
from redlock_django.locking.services import locks
from redlock_django.models import IdempotencyRecord
from tests.operate.commands import run
from tests.operate.sites import DatabaseSite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("in_memory")]
PURGE = "redlock_purge"
DAY = 86_400 * 10**6  # µs


@pytest.fixture
def _records() -> None:
    """Three records that may be deleted, and one that may not."""
    for number, days in enumerate((40, 41, 42, -1)):
        expired = timezone.now() - timedelta(days=days)
        IdempotencyRecord.objects.create(
            key_hash=str(number), state="completed", expires_at=expired
        )


@pytest.fixture
def _locks(request: pytest.FixtureRequest, settings: Settings, in_memory: None) -> None:
    """Three rows of locks that ended 40 days ago, in a database."""
    site = DatabaseSite(request, settings)
    for number in range(3):
        site.put(f"order:{number}")
    backend = locks["default"].backend
    assert isinstance(backend, DatabaseBackend)
    age = f"UPDATE {LOCKS} SET expires_at = expires_at - %s, fence = fence - %s"
    backend.connections.run(lambda cursor: cursor.execute(age, [40 * DAY, 40 * DAY]))


@contextmanager
def without_table(model: Any) -> Iterator[None]:
    """Rename the table of a model during the block."""
    table = model._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO away")
        try:
            yield
        finally:
            cursor.execute(f"ALTER TABLE away RENAME TO {table}")


@pytest.mark.usefixtures("_records", "_locks")
def test_records_and_locks_are_purged() -> None:
    ran = run(PURGE)
    assert (ran.status, ran.said) == (0, "")
    assert ran.out.splitlines() == ["records: deleted 3", "locks: deleted 3"]
    assert IdempotencyRecord.objects.count() == 1
    assert run(PURGE).out.splitlines() == ["records: deleted 0", "locks: deleted 0"]


@pytest.mark.usefixtures("_records")
def test_what_the_site_does_not_use_is_left_out() -> None:
    assert run(PURGE) == (0, "records: deleted 3\n", "")


@pytest.mark.usefixtures("_records", "_locks")
@pytest.mark.parametrize("days", ["0", "-5", "1000000"])
def test_wrong_values_are_refused(days: str) -> None:
    ran = run(PURGE, f"--days={days}")
    assert (ran.status, ran.out, "a number of days from 1 to 36500" in ran.said) == (2, "", True)
    assert run(PURGE).out.splitlines()[1] == "locks: deleted 3"


@pytest.mark.usefixtures("_records", "_locks")
def test_younger_rows_of_locks_stay() -> None:
    assert run(PURGE, "--days=41").out.splitlines() == ["records: deleted 3", "locks: deleted 0"]


@pytest.mark.usefixtures("_records", "_locks")
def test_wrong_settings_are_refused_before_anything_is_deleted(settings: Settings) -> None:
    default = {**settings.REDLOCK["default"], "IDEMPOTENCY": {"RETENTION": "long"}}
    settings.REDLOCK = {**settings.REDLOCK, "default": default}
    ran = run(PURGE)
    assert (ran.status, ran.out, "RETENTION" in ran.said) == (2, "", True)
    assert run(PURGE, "--using=nope").status == 2
    assert IdempotencyRecord.objects.count() == 4


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_records", "_locks")
def test_a_missing_table_names_migrate_and_the_other_kinds_are_purged() -> None:
    with without_table(IdempotencyRecord):
        ran = run(PURGE)
    assert ran.status == 1
    assert "records: the tables are missing or old in the database 'default'" in ran.said
    assert "run 'manage.py migrate --database default'" in ran.said
    assert ran.out == "locks: deleted 3\n"


def test_a_site_without_databases_has_nothing_to_purge(monkeypatch: pytest.MonkeyPatch) -> None:
    none = {**connections.settings["default"], "ENGINE": "django.db.backends.dummy"}
    monkeypatch.setitem(connections.settings, "default", none)
    assert run(PURGE) == (0, "", "The site keeps no records and no locks in a database.\n")


@pytest.mark.usefixtures("_records")
@pytest.mark.parametrize("error_class", [OperationalError, InterfaceError])
@pytest.mark.parametrize(("queries", "shown"), [(0, ""), (1, "records: deleted 3\n")])
def test_a_database_that_fails_is_exit_status_1_after_what_was_deleted(
    monkeypatch: pytest.MonkeyPatch, error_class: type[Error], queries: int, shown: str
) -> None:
    order_by, left = QuerySet.order_by, [None] * queries

    def fail(rows: QuerySet[Any], *fields: str) -> Any:
        if not left:
            raise error_class("gone\naway")
        left.pop()
        return order_by(rows, *fields)

    monkeypatch.setattr(QuerySet, "order_by", fail)
    assert run(PURGE) == (1, shown, "records: gone\\naway")
