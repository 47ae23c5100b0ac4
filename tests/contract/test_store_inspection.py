"""The store contract: held locks, forced release and health (`backends/inspection/contract.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.core.management import call_command

from redlock_django.backends.inspection.contract import Inspection
from redlock_django.backends.inspection.results import QuorumHealth, ReleaseOutcome
from redlock_django.engine.validity import LeaseState
from redlock_django.locking.services import locks
from tests import inspecting
from tests.app.checking import found
from tests.contract.stores import HOLDER, Store, SyncCaller
from tests.inspecting import free, look
from tests.waiting import until

if TYPE_CHECKING:
    from django.test import Client


def listed(store: Store, **asked: object) -> list[str]:
    """Return the resources of the held locks."""
    return [holding.resource for holding in inspecting.held(store.backend, **asked).locks]


def test_nothing_is_held_at_first(store: Store) -> None:
    page = inspecting.held(store.backend)
    assert (page.using, page.locks, page.truncated) == ("default", (), False)
    assert page.complete
    assert not page.silent


def test_a_held_lock_is_listed_with_its_holder(store: Store, caller: SyncCaller) -> None:
    lease = caller.acquire("order:1", ttl=30)
    until(lambda: listed(store) == ["order:1"], what="the lock is listed")
    (holding,) = inspecting.held(store.backend).locks
    assert holding.resource == "order:1"
    assert holding.fingerprint == lease.fingerprint
    assert holding.holder["path"] == "/orders/1/pay/"
    assert holding.ttl is not None
    assert 20 < holding.ttl <= 30


def test_a_released_lock_is_not_listed(store: Store, caller: SyncCaller) -> None:
    caller.release(caller.acquire("order:1"))
    until(lambda: not listed(store), what="the lock is gone")


def test_held_locks_are_sorted_by_the_time_left(store: Store, caller: SyncCaller) -> None:
    for name, ttl in (("a:3", 10), ("b:1", 20), ("a:2", 30)):
        caller.acquire(name, ttl=ttl)
    until(lambda: listed(store) == ["a:3", "b:1", "a:2"], what="the first to expire is first")
    assert listed(store, search="a:") == ["a:3", "a:2"]


def test_held_locks_have_pages(store: Store, caller: SyncCaller) -> None:
    for number in range(5):
        caller.acquire(f"order:{number}", ttl=30 - number)
    until(lambda: len(listed(store)) == 5, what="all are listed")
    for search in ("", "order"):
        pages = [
            inspecting.held(store.backend, search=search, offset=offset, limit=2)
            for offset in (0, 2, 4, 6)
        ]
        assert [page.count for page in pages] == [5] * 4
        assert [len(page.locks) for page in pages] == [2, 2, 1, 0]
        assert len({one.resource for page in pages for one in page.locks}) == 5


def test_a_list_that_was_cut_is_reported(
    store: Store, caller: SyncCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        caller.acquire(f"order:{number}", ttl=30 - number)
    until(lambda: len(listed(store)) == 5, what="all are listed")
    assert not inspecting.held(store.backend).truncated
    monkeypatch.setattr(Inspection, "MAX_LISTED", 2)
    found = inspecting.held(store.backend)
    assert found.truncated
    assert len(found.locks) == 2
    assert "order:0" in listed(store, search="order:0")  # the whole name is always read


def test_a_search_finds_a_part_of_the_name(store: Store, caller: SyncCaller) -> None:
    for name in ("order:17", "order:2", "user:17"):
        caller.acquire(name)
    until(lambda: len(listed(store)) == 3, what="all are listed")
    assert sorted(listed(store, search=":17")) == ["order:17", "user:17"]
    assert listed(store, search="order:2") == ["order:2"]
    assert not listed(store, search="nobody")


def test_a_search_finds_the_holder(store: Store, caller: SyncCaller) -> None:
    caller.acquire("order:17")
    until(lambda: listed(store) == ["order:17"], what="the lock is listed")
    assert listed(store, search="/orders/1/") == ["order:17"]
    assert listed(store, search="ORDER pay") == ["order:17"]
    assert not listed(store, search="order refund")


def test_resources_are_looked_up_by_name(store: Store, caller: SyncCaller) -> None:
    lease = caller.acquire("order:1")
    until(lambda: listed(store) == ["order:1"], what="the lock is listed")
    found = look(store.backend, ["order:2", "order:1"])
    assert [holding.fingerprint for holding in found.locks] == [lease.fingerprint]
    assert found.complete


def test_a_forced_release_frees_the_lock(store: Store, caller: SyncCaller) -> None:
    lease = caller.acquire("order:1")
    until(lambda: listed(store) == ["order:1"], what="the lock is listed")
    freed = free(store.backend, "order:1", lease.fingerprint)
    assert freed.outcome is ReleaseOutcome.RELEASED
    assert freed.fingerprint == lease.fingerprint
    assert freed.holder["path"] == "/orders/1/pay/"
    assert "released" in freed.masters.values()
    assert caller.extend(lease, 30)[0] is LeaseState.LOST
    assert caller.release(caller.acquire("order:1")) is True


def test_a_forced_release_keeps_the_fence(store: Store, caller: SyncCaller) -> None:
    lease = caller.acquire("order:1")
    free(store.backend, "order:1")
    assert caller.acquire("order:1").fences[0] > lease.fences[0]


def test_a_forced_release_spares_the_next_holder(store: Store, caller: SyncCaller) -> None:
    shown = caller.acquire("order:1")
    caller.release(shown)
    now = caller.acquire("order:1")
    freed = free(store.backend, "order:1", shown.fingerprint)
    assert freed.outcome is ReleaseOutcome.CHANGED
    assert freed.now == now.fingerprint
    assert caller.extend(now, 30)[0] is LeaseState.RENEWED


def test_a_free_resource_cannot_be_released_by_force(store: Store) -> None:
    assert free(store.backend, "order:1").outcome is ReleaseOutcome.NOT_HELD


def test_every_server_is_healthy_and_counted(store: Store, caller: SyncCaller) -> None:
    caller.release(caller.acquire("order:1"))
    health = inspecting.health(store.backend)
    assert health
    assert len({server.name for server in health}) == len(health)
    assert all(server.counted and not server.faults for server in health)
    quorum = QuorumHealth.of(health)
    assert quorum.counted == quorum.servers >= quorum.needed


def test_one_inspection_answers_several_questions(store: Store, caller: SyncCaller) -> None:
    caller.acquire("order:1")
    with store.backend.inspect() as inspection:
        assert inspection.health()
        until(lambda: len(inspection.held().locks) == 1, what="the lock is listed")
        assert inspection.has_quorum()
        assert not inspection.silent


@pytest.mark.slow
@pytest.mark.django_db
def test_commands_and_admin_show_and_free_locks(
    store: Store, admin_client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = store.backend
    lease = backend.acquire(("order:1",), 30, 0, HOLDER)
    for name, ttl in (("order:2", 40), ("user:7", 50)):
        backend.acquire((name,), ttl, 0, HOLDER)
    until(lambda: len(listed(store)) == 3, what="all are listed")
    call_command("redlock_status")
    assert store.shown in capsys.readouterr().out
    call_command("list_locks", search="order:")
    shown = capsys.readouterr().out
    assert lease.fingerprint in shown
    assert "user:7" not in shown
    url = "/admin/redlock_django/heldlock/"
    page = admin_client.get(url).content
    assert b"order:1" in page
    assert b"user:7" in page
    assert b"user:7" not in admin_client.get(url, {"q": "order:"}).content
    call_command("release_lock", "order:1", "--no-input", holder=lease.fingerprint)
    assert backend.extend(lease, 30)[0] is LeaseState.LOST
    if not backend.servers_are_masters:  # real masters of a test have warnings of their own
        assert found(deploy=True, tag="redlock_masters", databases=["default"]) == {}
    locks.close()
