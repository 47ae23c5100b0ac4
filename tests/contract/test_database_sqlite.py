"""Locks in a file of SQLite that is deleted or replaced while processes use it."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from redlock_django.engine.validity import LeaseState
from redlock_django.exceptions import StoreUnavailable
from redlock_django.locking.services import locks
from tests.contract.stores import HOLDER, Sqlite, Started, Store, database_of, granted, taken
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings


@pytest.fixture
def store(request: pytest.FixtureRequest, settings: Settings) -> Store:
    """A file, used by three aliases as by three processes; no lock lasts longer than 2 s."""
    store = Sqlite(request, settings)
    section = {**settings.REDLOCK["default"], "MAX_TTL": 2, "TTL": 2}
    settings.REDLOCK = dict.fromkeys(("default", "other", "new"), section)
    return store


def excluded(alias: str, *, by: str) -> bool:
    """Return whether a lock that one process holds is refused to another one."""
    lease = database_of(by).acquire(("order:4",), 2, 0, HOLDER)
    try:
        return taken("order:4", using=alias, ttl=1)
    finally:
        database_of(by).release(lease)


def test_a_file_that_another_process_is_making_is_waited_for(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite itself fails at once where the journal of a locked file is to be changed."""
    asked = threading.Event()
    pause = time.sleep

    def sleep(seconds: float) -> None:
        asked.set()
        pause(seconds)

    slept = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr("redlock_django.backends.database.settings.time", slept)
    with closing(sqlite3.connect(tmp_path / "site.sqlite3.locks", isolation_level=None)) as other:
        other.execute("CREATE TABLE being_made (x)")
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO being_made VALUES (1)")
        backend = database_of("default")
        acquired = Started(lambda: backend.acquire(("order:1",), 2, 0, HOLDER))
        assert asked.wait(30)
        other.execute("COMMIT")
        backend.release(acquired.lease())


def test_a_file_that_cannot_be_made_is_reported_at_once(store: Store, tmp_path: Path) -> None:
    (tmp_path / "site.sqlite3.locks-journal").mkdir()  # where SQLite makes its journal
    with pytest.raises(StoreUnavailable, match="unable to open database file"):
        database_of("default").acquire(("order:1",), 2, 0, HOLDER)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["deleted", "replaced", "gone with its folder"])
def test_a_file_that_is_replaced_is_not_trusted(store: Store, tmp_path: Path, how: str) -> None:
    """A process that went on with the old file would exclude no process with the new one."""
    assert granted("other")
    if how == "replaced":
        locks.close()  # so that the copy has everything
        shutil.copy(tmp_path / "site.sqlite3.locks", tmp_path / "backup")
        assert granted("other")
    lease = database_of("default").acquire(("order:1",), 2, 0, HOLDER)
    for file in tmp_path.glob("*.locks*"):
        file.unlink()
    if how == "replaced":
        (tmp_path / "backup").rename(tmp_path / "site.sqlite3.locks")
    elif how == "gone with its folder":
        tmp_path.rename(tmp_path.with_name("moved"))
        tmp_path.mkdir()
    database_of("new").acquire(("order:2",), 2, 0, HOLDER)
    with pytest.raises(StoreUnavailable, match=r"or restored: trusted in \d s") as refused:
        database_of("other").acquire(("order:2",), 2, 0, HOLDER)
    assert 0 < (refused.value.retry_after or 0) <= 2.1
    assert database_of("default").extend(lease, 2)[0] is LeaseState.LOST
    until(partial(granted, "other", "order:3"), what="the file is trusted")
    until(partial(excluded, "other", by="new"), what="both use the same file")
