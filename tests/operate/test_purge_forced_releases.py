"""`manage.py purge_forced_releases`: old records only, in batches, of one alias."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.db.models import QuerySet
from django.utils import timezone

from redlock_django.management.commands import purge_forced_releases
from redlock_django.models import ForcedRelease
from tests.operate.commands import run

pytestmark = pytest.mark.django_db
PURGE = "purge_forced_releases"


@pytest.fixture
def _records() -> None:
    for days in (1, 40, 41, 42):
        for using in ("default", "jobs"):
            record = ForcedRelease.objects.create(resource=f"order:{days}", using=using)
            at = timezone.now() - timedelta(days=days)
            ForcedRelease.objects.filter(pk=record.pk).update(at=at)


@pytest.mark.usefixtures("_records")
def test_old_records_are_deleted_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge_forced_releases, "BATCH", 2)
    dry = run(PURGE, "--days=30", "--dry-run", "--format=json")
    assert (dry.status, dry.json["deleted"], ForcedRelease.objects.count()) == (0, 3, 8)
    ran = run(PURGE, "--days=30")
    assert (ran.status, ran.out.split()) == (0, ["WHAT", "RECORDS", "deleted", "3"])
    left = ForcedRelease.objects.filter(using="default").values_list("resource", flat=True)
    assert list(left) == ["order:1"]
    assert ForcedRelease.objects.count() == 5


@pytest.mark.usefixtures("_records")
@pytest.mark.parametrize("days", ["-5", "0", "a week"])
def test_a_number_of_days_that_would_delete_all_records_is_refused(days: str) -> None:
    ran = run(PURGE, f"--days={days}")
    assert ran.status == 1
    assert "must be a number of days, 1 or more" in ran.said
    assert ForcedRelease.objects.count() == 8


def test_a_database_that_fails_is_exit_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, *_: Any, **__: Any) -> Any:
        raise OperationalError("gone\naway")

    monkeypatch.setattr(QuerySet, "order_by", fail)
    ran = run(PURGE, "--days=30", "--format=json")
    assert (ran.status, ran.json["deleted"]) == (1, 0)
    assert "gone\\naway" in ran.said
