"""`manage.py redlock_purge` of locks: old rows only, and no fence goes back."""

from __future__ import annotations

import re
from typing import Any

import pytest

from redlock_django.backends.database.dialects import LOCKS
from redlock_django.backends.database.purge import purge
from redlock_django.management.commands import redlock_purge
from tests.contract.stores import HOLDER, Database
from tests.operate.commands import run

PURGE = "redlock_purge"
DAY = 86_400 * 10**6  # µs


@pytest.mark.attack
@pytest.mark.django_db
def test_old_rows_are_deleted_and_no_fence_goes_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = database.backend
    names = ["ahead", "held", "old:1", "old:2", "old:3", "young"]
    leases = {name: backend.acquire((name,), 30, 0, HOLDER) for name in names}
    for name in names:
        if name != "held":
            backend.release(leases[name])

    def age(cursor: Any) -> None:
        old = "resource LIKE 'old%%' OR resource = 'ahead'"
        cursor.execute(f"UPDATE {LOCKS} SET expires_at = expires_at - %s WHERE {old}", [3 * DAY])
        old = "resource LIKE 'old%%'"
        cursor.execute(f"UPDATE {LOCKS} SET fence = fence - %s WHERE {old}", [3 * DAY])

    def left(cursor: Any) -> list[str]:
        cursor.execute(f"SELECT CAST(resource AS char(10)) FROM {LOCKS} ORDER BY resource")
        return [name.strip() for (name,) in cursor.fetchall()]

    backend.connections.run(age)
    monkeypatch.setattr(redlock_purge, "BATCH", 2)
    ran = run(PURGE, "--days=2")
    assert (ran.status, ran.out.splitlines()[-1]) == (0, "locks: deleted 3")
    assert backend.connections.run(left) == ["ahead", "held", "young"]
    assert backend.acquire(("old:1",), 30, 0, HOLDER).fences > leases["old:1"].fences
    assert backend.acquire(("ahead",), 30, 0, HOLDER).fences > leases["ahead"].fences


def test_a_row_that_is_taken_meanwhile_stays(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = sqlite.backend
    backend.release(backend.acquire(("order:1",), 30, 0, HOLDER))

    def age(cursor: Any) -> None:
        cursor.execute(f"UPDATE {LOCKS} SET expires_at = 0, fence = 0")

    backend.connections.run(age)
    taken, connections = [], backend.connections

    class Cursor:
        """Another client takes the lock after the rows have been looked for."""

        def __init__(self, cursor: Any) -> None:
            self._cursor = cursor

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cursor, name)

        def execute(self, statement: str, values: Any) -> None:
            if statement.startswith("DELETE"):
                now = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
                self._cursor.execute(f"UPDATE {LOCKS} SET expires_at = {now} + 30000000")
                taken.append(statement)
            self._cursor.execute(statement, values)

    run_work = connections.run
    monkeypatch.setattr(
        connections, "run", lambda work: run_work(lambda cursor: work(Cursor(cursor)))
    )
    assert sum(purge(connections, 86_400, 10)) == 0
    assert taken


@pytest.mark.django_db
def test_a_database_that_fails_is_exit_status_1(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite.backend.close()
    ran = run(PURGE)
    assert (ran.status, ran.out) == (1, "records: deleted 0\n")
    assert re.search("^locks: .*have been closed", ran.said, re.MULTILINE)
