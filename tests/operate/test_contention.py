"""Contention: counts in memory, rows of the table, and the page of the admin."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, connection
from django.test.utils import CaptureQueriesContext

from redlock_django.exceptions import LimitReached, QuorumUnreachable, ResourceLocked
from redlock_django.locking import events
from redlock_django.locking.counters import counters
from redlock_django.locking.lock import lock
from redlock_django.locking.services import locks
from redlock_django.models import ContentionCount
from redlock_django.operate import contention
from redlock_django.operate.contention import recorder
from redlock_django.operate.contention_report import (
    DAY,
    HOUR,
    NUMBERS,
    hottest,
    steps,
    this_minute,
)
from redlock_django.testing import held_elsewhere, memory_masters
from tests.operate.conftest import LIST
from tests.waiting import hold_until_wanted, until

if TYPE_CHECKING:
    from django.test import Client
    from pytest_django import Settings

    from redlock_django.backends.memory.backend import MemoryBackend

PAGE = LIST + "contention/"


@pytest.fixture(autouse=True)
def _no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write when a test says so only: a thread could not use the test's transaction."""
    monkeypatch.setattr(recorder, "_ensure_running", lambda: None)


@pytest.fixture
def masters(settings: Settings, db: None) -> Iterator[MemoryBackend]:
    """Three masters of an alias that is recorded; "other" is not."""
    three = {"MASTERS": ["redis://a", "redis://b", "redis://c"]}
    settings.REDLOCK = {
        "default": {**three, "RECORD_CONTENTION": True},
        "other": {"MASTERS": ["redis://d"]},
    }
    with memory_masters() as backend:
        assert locks["default"].settings.record_contention
        yield backend
    settings.REDLOCK = {"default": three, "other": three}
    for alias in ("default", "other"):
        recorder.follow(locks[alias].settings)
    assert recorder not in events.observers


def written() -> dict[str, dict[str, Any]]:
    """Write, and return the new rows by resource, without what is 0."""
    ContentionCount.objects.all().delete()
    recorder.write()
    return {
        row.resource: {
            name: value
            for name in NUMBERS
            if (value := getattr(row, name)) and not name.endswith("_seconds")
        }
        for row in ContentionCount.objects.all()
    }


def refuse(resource: str, times: int = 1, using: str = "default") -> None:
    with held_elsewhere(resource, using=using):
        for _ in range(times):
            with pytest.raises(ResourceLocked):
                lock(resource, using=using).acquire()


def test_a_lock_in_nobodys_way_is_counted_with_all_others_only(masters: MemoryBackend) -> None:
    for number in range(3):
        with lock(f"order:{number}"):
            pass
    assert written() == {"": {"acquired": 3, "released": 3}}


def test_nothing_is_written_if_nothing_happened(masters: MemoryBackend) -> None:
    assert written() == {}
    with lock("order:1"):
        pass
    assert written()
    assert written() == {}


def test_refusals(masters: MemoryBackend) -> None:
    refuse("order:1", 3)
    refuse("order:2")
    assert written() == {"": {"refused": 4}, "order:1": {"refused": 3}, "order:2": {"refused": 1}}


def test_only_resources_at_fault_are_counted(masters: MemoryBackend) -> None:
    with held_elsewhere("b"), pytest.raises(ResourceLocked):
        lock("a", "b", "c").acquire()
    assert written() == {"": {"refused": 1}, "b": {"refused": 1}}


@pytest.mark.parametrize("name", ["a,b", "a,", ",b", ",", ",,"])
def test_a_name_with_commas_is_counted(masters: MemoryBackend, name: str) -> None:
    refuse(name)
    assert written() == {"": {"refused": 1}, name: {"refused": 1}}


def test_slots_of_a_name_are_counted_as_the_name(masters: MemoryBackend) -> None:
    def wait_for_it() -> None:
        with lock("export", limit=2, wait=60):
            pass

    held = []
    for _ in range(2):
        held.append(lock("export", limit=2).acquire())
        held[-1].disown()
    with pytest.raises(LimitReached):
        lock("export", limit=2).acquire()
    waiter = threading.Thread(target=wait_for_it)
    waiter.start()
    until(lambda: masters.look(["export"]).locks[0].waiters, "a waiter")
    for one in held:
        one.release()
    waiter.join()
    rows = written()
    assert rows.keys() == {"", "export"}
    for row in rows.values():
        assert (row["refused"], row["released"]) == (1, 3)


def test_waits_and_holds(masters: MemoryBackend) -> None:
    hold_until_wanted("order:1")
    both = {"waited": 1, "released": 2}
    assert written() == {"": {**both, "acquired": 2}, "order:1": both}
    row = ContentionCount.objects.get(resource="order:1")
    assert row.waited_seconds > 0
    assert row.held_seconds > 0


def test_without_a_quorum_no_resource_is_hot(masters: MemoryBackend) -> None:
    masters.refuse(0)
    masters.refuse(1)
    with pytest.raises(QuorumUnreachable):
        lock("order:1").acquire()
    assert written() == {"": {"unavailable": 1}}


def test_another_alias_is_not_recorded(masters: MemoryBackend) -> None:
    refuse("order:1", using="other")
    assert written() == {}


async def test_tasks(masters: MemoryBackend) -> None:
    async with held_elsewhere("order:1"):
        with pytest.raises(ResourceLocked):
            await lock("order:1").aacquire()
    rows = recorder._rows(1)
    assert {row.resource: row.refused for row in rows} == {"": 1, "order:1": 1}


def test_memory_is_bounded(masters: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "TRACKED", 40)
    refuse("hot", 3)
    refuse("warm", 2)
    for number in range(100):
        with lock(f"order:{number}"):
            pass
        assert len(recorder._resources["default"]) <= 40
    monkeypatch.setattr(contention, "MOST", 2)
    assert set(written()) == {"", "hot", "warm"}


def test_a_resource_that_is_held_for_long_is_written(
    masters: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that holds it may be another one than those that are refused."""
    monkeypatch.setattr(contention, "LONG", 0.0)
    with lock("job"):
        pass
    assert written()["job"] == {"released": 1}


def test_old_rows_are_deleted_once_an_hour(masters: MemoryBackend) -> None:
    now = this_minute()
    for age in (contention.KEPT - 5, contention.KEPT + 5):
        ContentionCount.objects.create(minute=now - age, using="default", resource="")
    recorder._purged = 0
    refuse("order:1")
    recorder.write()
    rows = ContentionCount.objects.order_by("minute")
    assert rows[0].minute == now - contention.KEPT + 5
    refuse("order:1")
    with CaptureQueriesContext(connection) as queries:
        recorder.write()
    assert not [query for query in queries if "DELETE" in query["sql"]]


def test_a_write_that_fails_is_logged_once_and_harms_no_lock(
    masters: MemoryBackend, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(rows: object) -> None:
        raise DatabaseError("no such table")

    with monkeypatch.context() as patched:
        patched.setattr(ContentionCount.objects, "bulk_create", fail)
        for _ in range(3):
            refuse("order:1")
            recorder.write()
    assert caplog.text.count("could not be written: DatabaseError('no such table')") == 1
    refuse("order:1")
    assert written()["order:1"] == {"refused": 1}, "earlier counts were dropped"


def test_one_thread_writes(masters: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # _no_thread
    wrote = threading.Semaphore(0)
    monkeypatch.setattr(recorder, "write", wrote.release)
    monkeypatch.setattr(contention, "INTERVAL", 0.001)
    with lock("order:1"):
        pass
    thread = recorder._thread
    for _ in range(3):
        assert wrote.acquire(timeout=60)
    with lock("order:1"):
        pass
    assert recorder._thread is thread is not None
    recorder._stopped.set()
    thread.join(60)


def test_a_child_process_begins_at_zero(masters: MemoryBackend) -> None:
    refuse("order:1")
    counters._reset()
    recorder._reset()
    assert written() == {}


# What the page shows.


@pytest.fixture
def rows(masters: MemoryBackend) -> int:
    """Rows of several processes over a day; returns the current minute."""
    now = this_minute()
    for minute, resource, numbers in (
        (now, "", {"acquired": 1000, "refused": 30, "released": 1000, "held_seconds": 240.0}),
        (now - 1, "", {"refused": 12, "waited": 4, "waited_seconds": 2.0}),
        (now - 1, "", {"refused": 8, "unavailable": 3}),
        (now - 1, "order:1", {"refused": 12, "released": 4, "held_seconds": 2.0}),
        (now - 1, "order:1", {"waited": 4, "waited_seconds": 2.0}),
        (now, "<b>order</b>", {"refused": 30}),
        (now - 600, "", {"refused": 5}),
        (now - 600, "yesterday", {"refused": 99}),
        (now - 1500, "", {"refused": 1_000_000}),
        (now - 1500, "long ago", {"refused": 1_000_000}),
    ):
        ContentionCount.objects.create(minute=minute, using="default", resource=resource, **numbers)
    ContentionCount.objects.create(minute=now, using="other", resource="theirs", refused=1)
    return now


def test_the_report(rows: int) -> None:
    hour = steps("default", HOUR, rows)
    assert [len(hour), len(steps("default", DAY, rows))] == [60, 48]
    assert [one.refused for one in hour[-3:]] == [0, 20, 30]
    assert hour[-2].average_wait == 0.5
    assert hour[-1].average_hold == 0.24
    assert hour[0].average_wait is hour[0].average_hold is None
    assert sum(one.refused for one in steps("default", DAY, rows)) == 55
    assert [name for name, _ in hottest("default", HOUR, rows, 10)] == ["<b>order</b>", "order:1"]
    [(name, numbers)] = hottest("default", DAY, rows, 1)
    assert (name, numbers.refused) == ("yesterday", 99)
    [order] = [numbers for name, numbers in hottest("default", HOUR, rows, 9) if name == "order:1"]
    assert (order.refused, order.average_wait, order.average_hold) == (12, 0.5, 0.5)


def test_the_page_shows_totals_and_figures(rows: int, viewer: Client) -> None:
    with CaptureQueriesContext(connection) as queries:
        answer = viewer.get(PAGE)
    page = answer.content.decode()
    assert answer.status_code == 200
    assert "50 locks were refused, 1000 acquired · 3 without a quorum" in page
    assert "4 callers waited, for 0.5 s on average" in page
    assert "1000 locks were held, for 0.2 s on average" in page
    assert "at most 30" in page
    assert page.count("<figure") == page.count('class="redlock-bars"') == 6
    assert "&lt;b&gt;order&lt;/b&gt;" in page
    assert "yesterday" in page
    assert "long ago" not in page
    assert "theirs" not in page
    assert 'style="' not in page.partition('id="content"')[2]
    asked = [query for query in queries if "contentioncount" in query["sql"]]
    assert len(asked) == 4, "no query for each bar or row"


def test_the_page_needs_the_permission_for_held_locks(
    rows: int, staff: Callable[..., Client], client: Client
) -> None:
    assert staff("view_forcedrelease").get(PAGE).status_code == 403
    assert client.get(PAGE).status_code == 302


def test_the_list_links_to_the_page(masters: MemoryBackend, viewer: Client) -> None:
    assert f'href="{PAGE}?using=default"' in viewer.get(LIST).content.decode()


def test_the_page_says_how_to_record(masters: MemoryBackend, viewer: Client) -> None:
    page = viewer.get(PAGE + "?using=other").content.decode()
    assert "&quot;RECORD_CONTENTION&quot;: True in REDLOCK[&#x27;other&#x27;]" in page
    assert "<figure" not in page


def test_an_unknown_alias_is_reported(masters: MemoryBackend, viewer: Client) -> None:
    answer = viewer.get(PAGE + "?using=nobody", follow=True)
    assert "There is no such alias." in answer.content.decode()


def test_the_page_of_a_table_that_is_missing(
    masters: MemoryBackend, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DatabaseError

    monkeypatch.setattr("redlock_django.admin.contention.steps", fail)
    assert "Has it been migrated?" in viewer.get(PAGE).content.decode()
