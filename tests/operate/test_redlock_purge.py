"""`manage.py redlock_purge`: which kinds it purges, what it refuses, and releases by force.

Locks are in tests/contract/test_database_purge.py, records in
tests/idempotency/test_records_commands.py.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from django.db import Error, InterfaceError, OperationalError, connection, connections
from django.db.models import QuerySet
from django.utils import timezone

from redlock_django.models import ForcedRelease, IdempotencyRecord
from tests.operate.commands import THREE_IN_MEMORY, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings

pytestmark = pytest.mark.django_db
PURGE = "redlock_purge"
RELEASES = (PURGE, "--only=releases")
UNUSED = {"outcome": "not used"}


@pytest.fixture(autouse=True)
def _memory(settings: Settings) -> None:
    settings.REDLOCK = {"default": THREE_IN_MEMORY}


@pytest.fixture
def _forced() -> None:
    for days in (1, 40, 41, 400, 401, 402):
        for using in ("default", "jobs"):
            record = ForcedRelease.objects.create(resource=f"order:{days}", using=using)
            at = timezone.now() - timedelta(days=days)
            ForcedRelease.objects.filter(pk=record.pk).update(at=at)


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


@pytest.mark.usefixtures("_forced")
def test_all_kinds_that_the_site_uses_are_purged_with_defaults() -> None:
    old = timezone.now() - timedelta(days=40)
    IdempotencyRecord.objects.create(key_hash="a", state="completed", expires_at=old)
    dry = run(PURGE, "--dry-run", "--format=json")
    assert (dry.status, dry.said, dry.json["dry_run"]) == (0, "", True)
    assert dry.json["kinds"] == {
        "records": {"outcome": "done", "deleted": 1, "emptied": 0},
        "locks": UNUSED,
        "releases": {"outcome": "done", "deleted": 3},
    }
    assert (ForcedRelease.objects.count(), IdempotencyRecord.objects.count()) == (12, 1)
    ran = run(PURGE)
    assert (ran.status, ran.said.splitlines()) == (0, ["records: deleted 1", "releases: deleted 3"])
    assert [line.split() for line in ran.out.splitlines()] == [
        ["KIND", "OUTCOME", "DELETED", "EMPTIED"],
        ["records", "done", "1", "0"],
        ["locks", "not", "used", "-", "-"],
        ["releases", "done", "3", "-"],
    ]
    assert (ForcedRelease.objects.count(), IdempotencyRecord.objects.count()) == (9, 0)


@pytest.mark.usefixtures("_forced")
def test_old_releases_of_one_alias_are_deleted_in_batches() -> None:
    ran = run(*RELEASES, "--days=30", "--batch=2", "--format=json")
    assert (ran.status, ran.json["kinds"]) == (0, {"releases": {"outcome": "done", "deleted": 5}})
    assert ran.said.splitlines() == [f"releases: deleted {rows}" for rows in (2, 4, 5)]
    left = ForcedRelease.objects.filter(using="default").values_list("resource", flat=True)
    assert list(left) == ["order:1"]
    assert ForcedRelease.objects.count() == 7


@pytest.mark.usefixtures("_forced")
@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        *((f"--days={days}", "a number of days from 1 to 36500") for days in ("0", "-5", "week")),
        ("--days=1000000", "a number of days from 1 to 36500"),
        ("--batch=0", "a number of rows from 1 to 10000"),
        ("--batch=10001", "a number of rows from 1 to 10000"),
        ("--only=rows", "choose from"),
    ],
)
def test_wrong_values_are_refused(argument: str, problem: str) -> None:
    ran = run(*RELEASES, argument)
    assert (ran.status, problem in ran.said) == (1, True), ran.said  # 2 in a process of its own
    assert ForcedRelease.objects.count() == 12


@pytest.mark.usefixtures("_forced")
@pytest.mark.parametrize("only", [[], ["--only=releases", "--only=records"]])
def test_days_are_refused_with_records(only: list[str]) -> None:
    ran = run(PURGE, "--days=1", *only)
    assert (ran.status, ran.out) == (2, "")
    assert "--days does not fit records: RETENTION and TOMBSTONE_RETENTION" in ran.said
    assert ForcedRelease.objects.count() == 12


@pytest.mark.usefixtures("_forced")
def test_a_kind_of_only_that_is_not_used_is_refused_before_anything_is_deleted() -> None:
    ran = run(*RELEASES, "--only=locks")
    assert (ran.status, ran.out) == (2, "")
    assert "--only locks: REDLOCK['default'] keeps no rows: its BACKEND is not" in ran.said
    assert ForcedRelease.objects.count() == 12


@pytest.mark.usefixtures("_forced")
def test_wrong_settings_are_refused_before_anything_is_deleted(settings: Settings) -> None:
    settings.REDLOCK = {"default": {**THREE_IN_MEMORY, "IDEMPOTENCY": {"RETENTION": "long"}}}
    ran = run(PURGE)
    assert (ran.status, ran.out, "RETENTION" in ran.said) == (2, "", True)
    assert run(PURGE, "--using=nope").status == 2
    assert ForcedRelease.objects.count() == 12
    assert run(*RELEASES).status == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_forced")
def test_a_missing_table_names_migrate_and_the_other_kinds_are_purged() -> None:
    with without_table(IdempotencyRecord):
        ran = run(PURGE, "--format=json")
    assert ran.status == 1
    assert "records: the tables are missing or old in the database 'default'" in ran.said
    assert "run 'manage.py migrate --database default'" in ran.said
    assert ran.json["kinds"] == {
        "records": {"outcome": "failed", "deleted": 0, "emptied": 0},
        "locks": UNUSED,
        "releases": {"outcome": "done", "deleted": 3},
    }
    with without_table(ForcedRelease):
        assert "releases: the tables are missing" in run(PURGE).said


def test_a_site_without_databases_has_nothing_to_purge(monkeypatch: pytest.MonkeyPatch) -> None:
    none = {**connections.settings["default"], "ENGINE": "django.db.backends.dummy"}
    monkeypatch.setitem(connections.settings, "default", none)
    ran = run(PURGE, "--format=json")
    assert (ran.status, ran.json["kinds"]) == (
        0,
        {"records": UNUSED, "locks": UNUSED, "releases": UNUSED},
    )
    only = run(*RELEASES)
    assert (only.status, "DATABASES has no database 'default'" in only.said) == (2, True)


class ReadsElsewhere:
    """A router whose reads go to a replica, which may lag behind."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


@pytest.mark.usefixtures("_forced")
def test_releases_are_found_where_they_are_deleted(settings: Settings) -> None:
    settings.DATABASE_ROUTERS = [f"{__name__}.ReadsElsewhere"]
    ran = run(*RELEASES, "--format=json")
    assert (ran.status, ran.json["kinds"]["releases"]["deleted"]) == (0, 3)


@pytest.mark.parametrize("error_class", [OperationalError, InterfaceError])
def test_a_database_that_fails_is_exit_status_1(
    monkeypatch: pytest.MonkeyPatch, error_class: type[Error]
) -> None:
    def fail(self: Any, *_: Any, **__: Any) -> Any:
        raise error_class("gone\naway")

    monkeypatch.setattr(QuerySet, "order_by", fail)
    ran = run(*RELEASES, "--format=json")
    assert (ran.status, ran.json["kinds"]["releases"]) == (1, {"outcome": "failed", "deleted": 0})
    assert "releases: gone\\naway" in ran.said


@pytest.mark.parametrize("name", ["idempotency_records", "lock_rows", "forced_releases"])
def test_the_names_of_before_are_gone(name: str) -> None:
    with pytest.raises(CommandError, match="Unknown command"):
        call_command(f"purge_{name}")
