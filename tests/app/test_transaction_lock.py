"""Locks that are transactions of SQLite."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import TestCase

from redlock_django import InvalidRedlock, ResourceLocked, transaction_lock
from redlock_django.backends.values import LONGEST_WAIT
from testproject.shop.models import Order
from tests.aliases import database_alias

IMMEDIATE = {"transaction_mode": "immediate", "timeout": 30}


@pytest.fixture
def file(tmp_path: Path, django_db_blocker: Any) -> Iterator[Path]:
    """Add the alias "file", a database of SQLite, and return its path."""
    name = tmp_path / "site.sqlite3"
    entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(name), "OPTIONS": IMMEDIATE}
    with django_db_blocker.unblock(), database_alias("file", entry):
        yield name


def is_free(file: Path) -> bool:
    with closing(sqlite3.connect(file, timeout=0)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        return True


def test_the_lock_of_sqlite_is_the_write_lock_of_the_database(file: Path) -> None:
    with transaction_lock("order:1", database="file"):
        assert not is_free(file)
        with transaction_lock("order:2", database="file"):
            pass
        assert not is_free(file)
    assert is_free(file)
    with transaction.atomic("file"):
        with transaction_lock("order:1", database="file"):
            pass
        assert not is_free(file)


def test_a_wait_that_no_database_can_count_is_refused(file: Path) -> None:
    with pytest.raises(ValueError, match=r"wait must be at most 604800 s \(7 days\), got 1e\+10"):
        transaction_lock("order:1", database="file", wait=1e10)
    with transaction_lock("order:1", database="file", wait=LONGEST_WAIT):
        assert not is_free(file)


def test_waiting_is_limited_and_the_timeout_of_the_site_stays(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for wait in (0, 0.05):
            with (
                pytest.raises(ResourceLocked, match="order:1: another transaction of 'file'"),
                transaction_lock("order:1", database="file", wait=wait),
            ):
                pytest.fail("two holders")
        had: list[Any] = []

        def hold() -> None:
            with transaction_lock("order:1", database="file", wait=30):
                had.extend(connections["file"].connection.execute("PRAGMA busy_timeout"))
            connections.close_all()

        thread = threading.Thread(target=hold)
        thread.start()
        other.execute("COMMIT")
        thread.join()
    assert had == [(30000,)]


@pytest.mark.parametrize("mode", [None, "DEFERRED"])
def test_a_transaction_that_begins_without_the_write_lock_is_refused(
    file: Path, mode: str | None
) -> None:
    connections.settings["file"]["OPTIONS"] = {"transaction_mode": mode}
    with pytest.raises(InvalidRedlock, match=r"OPTIONS\['transaction_mode'\] to 'IMMEDIATE'"):
        transaction_lock("order:1", database="file")


def test_sqlite_without_autocommit_is_refused(file: Path) -> None:
    connections["file"].set_autocommit(False)
    for block in (transaction_lock("order:1", database="file"),) * 2:
        with pytest.raises(InvalidRedlock, match="SQLite without autocommit"), block:
            pytest.fail("its transactions are deferred")


class Tests(TestCase):
    """A test of a site, whose transaction is around everything."""

    def test_a_lock_works_in_the_transaction_of_a_test(self) -> None:
        with transaction_lock("order:1"):
            row = Order.objects.create(number="A-1", total=1)
        with transaction_lock(row):
            assert Order.objects.count() == 1
