"""The counts of contention in databases other than SQLite."""

from __future__ import annotations

import pytest

from redlock_django.models import ContentionCount
from redlock_django.operate.contention_report import DAY, HOUR, hottest, steps

pytestmark = [pytest.mark.live, pytest.mark.nightly]

NOW = 29_000_000


@pytest.mark.parametrize(
    ("tables", "alias"), [("postgres_tables", "pg"), ("mysql_tables", "maria")]
)
def test_the_report(
    tables: str, alias: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.getfixturevalue(tables)
    monkeypatch.setattr(ContentionCount, "objects", ContentionCount.objects.using(alias))
    ContentionCount.objects.bulk_create(
        ContentionCount(minute=NOW - age, using="default", resource=name, refused=refused)
        for age, name, refused in (
            (0, "", 3),
            (0, "a", 1),
            (0, "A", 2),
            (1, "", 5),
            (1, "a", 5),
            (700, "", 7),
        )
    )
    try:
        assert [one.refused for one in steps("default", HOUR, NOW)][-3:] == [0, 5, 3]
        assert sum(one.refused for one in steps("default", DAY, NOW)) == 15
        named = [(name, one.refused) for name, one in hottest("default", DAY, NOW, 5)]
        assert named == [("a", 6), ("A", 2)]
    finally:
        ContentionCount.objects.all().delete()
