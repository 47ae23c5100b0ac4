"""Several groups of masters in memory: one lock service, each resource in one group."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.utils import quote
from django.test import Client

from redlock_django.backends.inspection.results import ServerHealth
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.backends.redlock.inspection import MasterInspection
from redlock_django.backends.sharded.backend import ShardedBackend
from redlock_django.checks.deployment import check_deployment
from redlock_django.checks.masters import check_masters
from redlock_django.checks.settings import check_settings
from redlock_django.engine.inspection.holders import HoldingState
from redlock_django.engine.protocol.deployment import numbers_of
from redlock_django.engine.validity import Lease, fingerprint_of
from redlock_django.exceptions import (
    InvalidRedlock,
    LockLost,
    QuorumUnreachable,
    ResourceLocked,
)
from redlock_django.locking.lock import lock
from redlock_django.locking.services import locks
from redlock_django.operate.forced_release import ReleaseOutcome, force_release
from redlock_django.operate.health import master_status, quorums
from redlock_django.operate.inspection import held_locks, who_holds
from redlock_django.testing import assert_locked, assert_not_locked, held_elsewhere, memory_masters
from tests.app.conftest import stop_clocks
from tests.live.test_locking_interrupts import Lines
from tests.operate.commands import run
from tests.timeouts import generous_timeouts

if TYPE_CHECKING:
    from pytest_django import Settings

GROUPS = [[f"redis://{group}{n}" for n in (1, 2, 3)] for group in "ab"]
MEMORY = "redlock_django.backends.memory.MemoryBackend"


@pytest.fixture(autouse=True)
def _groups(settings: Settings) -> None:
    settings.REDLOCK = {
        "default": {"BACKEND": MEMORY, "MASTERS": GROUPS, "TTL": 5, **generous_timeouts(2)}
    }


def backend() -> ShardedBackend:
    found = locks["default"].backend
    assert isinstance(found, ShardedBackend)
    return found


def shards() -> list[MemoryBackend]:
    return [shard for shard in backend().shards if isinstance(shard, MemoryBackend)]


def group(index: int) -> MemoryBackend:
    return shards()[index]


def of_group(index: int, nth: int = 0) -> str:
    """Return the name of a resource that belongs to a group, the nth one."""
    names = (f"order:{n}" for n in range(1000))
    return [name for name in names if backend().shard_of(name) == index][nth]


def held() -> list[str]:
    return [one.resource for one in held_locks(order="resource").locks]


def down(index: int, masters: int) -> None:
    for master in range(masters):
        group(index).refuse(master)


def test_a_lock_is_stored_only_in_the_group_of_its_resource() -> None:
    for index in (0, 1):
        with lock(of_group(index)):
            keys = [
                [
                    master.keyspace.get(f"redlock:lock:{of_group(index)}")
                    for master in group(one).masters
                ]
                for one in (0, 1)
            ]
            assert all(keys[index])
            assert not any(keys[1 - index])


def test_a_lock_over_both_groups_excludes_locks_over_one() -> None:
    here, there = of_group(0), of_group(1)
    with lock(there, here) as both:
        assert list(both.fences) == [there, here]
        for name in (here, there):
            with pytest.raises(ResourceLocked) as caught, held_elsewhere(name):
                pass
            assert caught.value.resource == name
        assert_locked(here, there)
    assert_not_locked(here, there)
    for name in (here, there):
        with held_elsewhere(name), pytest.raises(ResourceLocked) as caught:
            lock(here, there).acquire()
        assert caught.value.resource == name
        assert held() == []


def test_fences_grow_whether_a_resource_is_taken_alone_or_with_others() -> None:
    here, there = of_group(0), of_group(1)
    seen: dict[str, list[int]] = {here: [], there: []}
    for names in ((here,), (there, here), (there,), (here, there)):
        with lock(*names) as taken:
            for name, fence in taken.fences.items():
                seen[name].append(fence)
    for fences in seen.values():
        assert fences == sorted(set(fences))
        assert len(fences) == 3


def test_only_resources_of_a_group_that_is_down_are_refused() -> None:
    down(1, 2)
    assert lock(of_group(0)).acquire().release()
    for names in ([of_group(1)], [of_group(0), of_group(1)]):
        with pytest.raises(QuorumUnreachable, match="2 of 3 masters of group 2 cannot be counted"):
            lock(*names).acquire()
    assert held() == []


@pytest.mark.django_db
def test_a_lock_over_groups_is_lost_with_its_first_part() -> None:
    stop_clocks()
    here, there = of_group(0), of_group(1)
    taken = lock(here, there).acquire()
    assert taken.extend() > 4
    assert force_release(there, by="a test").outcome is ReleaseOutcome.RELEASED
    with pytest.raises(LockLost):
        taken.extend()
    assert held() == []  # the rest of the lock was released
    assert taken.release() is False


def test_a_lock_is_valid_until_its_first_part_ends() -> None:
    stop_clocks()
    taken = lock(of_group(0), of_group(1)).acquire()
    MemoryBackend.advance(4)
    assert taken.remaining() == pytest.approx(0.95, abs=0.01)
    MemoryBackend.advance(1)
    assert taken.remaining() == 0
    assert lock(of_group(0), of_group(1)).acquire().release()


def test_an_extension_that_only_one_group_answers_is_not_a_loss() -> None:
    stop_clocks()
    taken = lock(of_group(0), of_group(1)).acquire()
    MemoryBackend.advance(2)
    down(0, 2)
    assert taken.extend() < 3.1  # the lock is still valid for its old TTL
    for index in (0, 1):
        group(0).restore(index)
    assert taken.extend() > 4
    assert taken.release()


def test_an_interrupted_release_still_releases_the_remaining_groups() -> None:
    first = min((0, 1), key=backend().identities.__getitem__)
    names = (of_group(0), of_group(1))
    release = group(first).release

    def broken(lease: Lease) -> None:
        group(first).release = release  # type: ignore[method-assign]
        raise KeyboardInterrupt

    async def cancelled(lease: Lease) -> None:
        broken(lease)

    async def acquire_and_release() -> None:
        await backend().arelease(await backend().aacquire(names, 5, 0, "{}"))

    group(first).release = broken  # type: ignore[method-assign]
    group(first).arelease = cancelled  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        backend().release(backend().acquire(names, 5, 0, "{}"))
    assert held() == []
    group(first).release = broken  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(acquire_and_release())
    assert held() == []


@pytest.mark.parametrize("several", [False, True], ids=["one group", "both"])
@pytest.mark.parametrize("what", ["acquire", "extend", "release"])
def test_interrupted_at_every_line_of_sharded(what: str, several: bool) -> None:
    """Raise KeyboardInterrupt at each line: no part of the lock is left in any group."""
    lines, visits = Lines(), Counter[tuple[str, int]]()

    def strike(wanted: tuple[tuple[str, int], int] | None = None) -> None:
        taken = lock(*[of_group(0), of_group(1)][: 1 + several])
        lines.strike(taken, what, wanted)

    strike()
    visits.update(lines.seen)
    ours = [
        index
        for index in visits
        if index[0].endswith(("backends/sharded/backend.py", "engine/run_protocol.py"))
    ]
    assert len(ours) > 5
    for index in ours:
        for nth in range(1, visits[index] + 1):
            strike((index, nth))
            assert held() == [], f"after an interrupt at {index}, time {nth}"


async def test_tasks_acquire_and_release_over_groups() -> None:
    stop_clocks()
    names = (of_group(0), of_group(1))
    async with lock(*names) as taken:
        assert await taken.aextend() > 4
        with pytest.raises(ResourceLocked):
            async with held_elsewhere(names[1]):
                pass
    async with held_elsewhere(*names):
        pass


def test_a_waiter_acquires_both_groups_when_they_are_free() -> None:
    here, there = of_group(0), of_group(1)
    waiting, got = threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        with lock(here, there, wait=20):
            got.set()

    other = threading.Thread(target=wait)
    with lock(there):
        other.start()
        assert waiting.wait(60)
        assert not got.is_set()
    other.join(60)
    assert got.is_set()
    assert held() == []


def test_a_waiter_keeps_a_partial_lock_for_half_its_ttl_at_most() -> None:
    stop_clocks()
    first, second = sorted((0, 1), key=backend().identities.__getitem__)
    here, there = of_group(first), of_group(second)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        MemoryBackend.advance(seconds)

    group(second).sleep = sleep
    released_after_sleep: list[bool] = []
    original = group(first).post_release

    def post_release(lease: Lease) -> None:
        released_after_sleep.append(bool(slept))
        original(lease)

    group(first).post_release = post_release  # type: ignore[method-assign]
    with held_elsewhere(there), pytest.raises(ResourceLocked) as caught:
        lock(here, there, ttl=2, wait=4.5).acquire()
    # The waiter begins again every second, and releases its part at the end.
    assert released_after_sleep == [True] * 5
    assert 3 < caught.value.waited <= 4.6
    assert held() == []


def test_overlapping_locks_do_not_deadlock() -> None:
    names = [of_group(0), of_group(1)]
    turns: list[str] = []
    failed: list[BaseException] = []

    def take(*order: str) -> None:
        try:
            for _ in range(20):
                with lock(*order, wait=30):
                    turns.append(order[0])
        except BaseException as error:  # noqa: BLE001 - asserted below
            failed.append(error)

    threads = [threading.Thread(target=take, args=order) for order in (names, names[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert len(turns) == 40


@pytest.mark.django_db
def test_lists_and_release_know_the_groups() -> None:
    here, there = of_group(0), of_group(1)
    with lock(here, there):
        page = held_locks(order="resource")
        assert {one.resource for one in page.locks} == {here, there}
        assert all(one.state.value == "held" and len(one.servers) == 3 for one in page.locks)
        assert page.about == page.total == 2
        down(1, 2)
        (seen,) = who_holds(there).locks
        assert seen.state.value == "unclear"
        assert len(seen.silent) == 2
        (seen,) = who_holds(here).locks
        assert (seen.state.value, len(seen.silent)) == ("held", 0)
        freed = force_release(here, by="a test")
        assert freed.outcome is ReleaseOutcome.RELEASED
        assert freed.masters == {f"a{n}:6379": "released" for n in (1, 2, 3)}
        assert force_release(of_group(1, 1), by="a test").outcome is ReleaseOutcome.NO_QUORUM
        assert force_release(of_group(0, 1), by="a test").outcome is ReleaseOutcome.NOT_HELD


@pytest.mark.django_db
def test_a_forced_release_changes_one_group_only() -> None:
    """A lock of the same name in a group that the resource does not belong to is kept."""
    here, value = of_group(0), b"%s {}" % (b"f" * 32)
    taken = lock(here).acquire()
    for master in group(1).masters:
        master.keyspace.set(f"redlock:lock:{here}", value)
    group(1).refuse(2)

    def copies() -> list[bytes | None]:
        return [master.keyspace.get(f"redlock:lock:{here}") for master in group(1).masters]

    changed = force_release(here, by="a test", fingerprint=fingerprint_of(b"f" * 32))
    assert (changed.outcome, changed.now) == (ReleaseOutcome.CHANGED, taken.fingerprint)
    assert list(changed.masters) == ["b3:6379"]
    assert copies() == [value] * 3
    freed = force_release(here, by="a test")
    assert (freed.outcome, list(freed.masters)) == (ReleaseOutcome.RELEASED, list(group(0).names))
    assert copies() == [value] * 3
    freed = force_release(here, by="a test")
    assert (freed.outcome, list(freed.masters)) == (ReleaseOutcome.RELEASED, list(group(1).names))
    taken.release()


def test_pages_run_over_all_groups_in_one_order() -> None:
    names = [of_group(index, nth) for nth in range(3) for index in (0, 1)]
    with ExitStack() as stack:
        for number, name in enumerate(names):
            stack.enter_context(lock(name, ttl=40 + number, renew=False))
        first, rest = held_locks(limit=4), held_locks(limit=4, offset=4)
        assert [one.resource for one in (*first.locks, *rest.locks)] == names
        assert (first.total, first.about, first.stopped_at) == (6, 6, None)
        last = held_locks(order="-resource", limit=2).locks
        assert [one.resource for one in last] == sorted(names, reverse=True)[:2]
        assert held_locks(state=HoldingState.HELD, limit=1).total == 6
        assert {one.resource for one in held_locks(search="order:").locks} == set(names)
        assert {one.resource for one in held_locks(scan=True).locks} == set(names)


def test_a_quorum_counts_in_the_group_that_decides() -> None:
    here, there = of_group(0), of_group(1)
    assert who_holds(here, there).undecided == frozenset()
    down(1, 2)
    found = who_holds(here, there)
    assert found.undecided == {there}
    assert not found.complete
    assert not held_locks().complete
    assert found.servers == tuple(f"{g}{n}:6379" for g in "ab" for n in (1, 2, 3))
    assert list(found.silent) == ["b1:6379", "b2:6379"]
    assert who_holds(here).complete is False
    assert [one.label for one in quorums(master_status())] == ["group 1: ", "group 2: "]


def test_all_groups_are_asked_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that hang in several groups cost one timeout, not one timeout per group."""
    both = threading.Barrier(2)
    health = MasterInspection.health

    def meets(inspection: MasterInspection) -> list[ServerHealth]:
        both.wait(30)
        return health(inspection)

    monkeypatch.setattr(MasterInspection, "health", meets)
    assert len(master_status()) == 6


def test_one_server_in_two_groups_is_counted_in_neither() -> None:
    group(1).masters[0].run_id = group(0).masters[2].run_id
    statuses = master_status()
    assert [one.counted for one in statuses] == [True, True, False, False, True, True]
    assert dict(statuses[2].faults)["twin"] == (
        "is the same server as b1:6379: none of them is counted"
    )
    assert [one.counted for one in quorums(statuses)] == [2, 2]


@pytest.mark.django_db
def test_a_lock_in_its_old_group_is_still_shown_and_released() -> None:
    stray = of_group(0)
    lease = group(1).acquire((stray,), 5, 0, "{}")
    (seen,) = held_locks().locks
    assert (seen.resource, seen.state.value, seen.fingerprint) == (stray, "held", lease.fingerprint)
    assert force_release(stray, by="a test").outcome is ReleaseOutcome.RELEASED
    assert held() == []


def test_commands_and_checks_name_the_group_without_a_quorum() -> None:
    ran = run("redlock_status")
    assert "default: group 2: 3 of 3 masters are counted, 2 are needed" in ran.said
    down(1, 2)
    ran = run("redlock_status", "--format=json")
    assert ran.status == 3
    assert ran.json["quorum"] is False
    assert ran.json["groups"] == [
        {"masters": 3, "counted": 3, "needed": 2},
        {"masters": 3, "counted": 1, "needed": 2},
    ]
    assert [one.name for one in master_status()] == [
        f"{g}{n}:6379" for g in "ab" for n in (1, 2, 3)
    ]
    assert "group 1: 3 of 3" in ran.said
    assert "group 2: 1 of 3" in ran.said
    short = [m for m in check_masters(databases=["default"]) if m.id == "redlock_django.E043"]
    assert [message.msg for message in short] == [
        "REDLOCK['default']: group 2: 1 of 3 masters are counted, so no lock can be acquired."
    ]
    assert run("list_locks").status == 3
    assert run("release_lock", of_group(1), "--force", "--noinput").status == 3
    assert run("release_lock", of_group(0), "--force", "--noinput").status == 1


def test_passwords_are_found_in_groups(settings: Settings) -> None:
    masters = [["redis://a"], ["redis://:hush@b"]]
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "MASTERS": masters}}
    messages = [message.msg for message in check_deployment()]
    assert any("group 2, master 1 has a password in its URL" in text for text in messages)
    assert "hush" not in repr(messages)


@pytest.mark.parametrize(
    ("masters", "said"),
    [
        ([["redis://a"], "redis://b"], "a list of URLs or a list of groups (lists), not both"),
        ([["redis://a"], []], "group 2 is empty"),
        ([["redis://a"], ["redis://b", "redis://c"]], "group 1 has 1 masters and group 2 has 2"),
        ([["redis://a"], ["redis://A:6379/1"]], "group 1, master 1 and group 2, master 1 are one"),
        ([["redis://a"], ["http://:hush@b"]], "group 2, master 1: must start with redis://"),
        ([["redis://a", "redis://a"], ["redis://b", "redis://c"]], "group 1, master 2 are one"),
    ],
)
def test_invalid_groups_are_refused(settings: Settings, masters: Any, said: str) -> None:
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "MASTERS": masters}}
    with pytest.raises(InvalidRedlock) as caught:
        lock("order:1")
    assert said in str(caught.value)
    assert str(caught.value).startswith("REDLOCK['default']: MASTERS")
    assert "hush" not in str(caught.value)


def test_a_list_of_one_group_equals_a_plain_list_of_masters(settings: Settings) -> None:
    prints = []
    for masters in (GROUPS[:1], GROUPS[0]):
        settings.REDLOCK = {"default": {"BACKEND": MEMORY, "MASTERS": masters}}
        found = locks["default"].backend
        assert isinstance(found, MemoryBackend)
        prints.append(found.deployment.fingerprint)
    assert prints[0] == prints[1]
    # A server keeps this string, so an upgrade that changed it would stop every site.
    assert numbers_of(prints[0]) == "n=3,ttl=60000,skew=500,delay=63750"


def test_only_a_change_of_groups_changes_the_deployment(settings: Settings) -> None:
    def fingerprint(masters: Any) -> str:
        settings.REDLOCK = {"default": {"BACKEND": MEMORY, "MASTERS": masters}}
        (found,) = {shard.deployment.fingerprint for shard in shards()}
        return str(found)

    same = fingerprint(GROUPS)
    reordered = [[*reversed(one)] for one in reversed(GROUPS)]
    assert fingerprint(reordered) == same
    assert fingerprint([*GROUPS, ["redis://c1", "redis://c2", "redis://c3"]]) != same
    assert fingerprint([GROUPS[0], ["redis://b1", "redis://b2", "redis://b4"]]) != same


def test_tests_of_an_application_need_not_know_of_groups() -> None:
    with memory_masters() as one:
        assert one.deployment.names == ("a1:6379", "a2:6379", "a3:6379")
        with lock(*(f"order:{n}" for n in range(8))):
            assert_locked("order:1")


def test_a_machine_may_have_one_master_of_each_group(settings: Settings) -> None:
    def warned(*groups: list[str]) -> bool:
        settings.REDLOCK = {"default": {"MASTERS": [*groups]}}
        return any(message.id == "redlock_django.W004" for message in check_settings())

    one, two = (
        [f"redis://10.0.0.{machine}:{port}" for machine in (1, 2, 3)] for port in (7001, 7002)
    )
    assert not warned(one, two)
    assert warned([one[0], two[0], one[1]], [one[2], two[2], two[1]])


def test_the_admin_draws_a_lock_on_the_masters_of_its_group(admin_client: Client) -> None:
    with lock(of_group(0), of_group(1)):
        page = admin_client.get("/admin/redlock_django/heldlock/")
        found = page.context["cl"].result_list
        assert [row.name for row in page.context["cl"].masters] == list(backend().names)
        for index, letter in enumerate("ab"):
            (one,) = [held for held in found if held.resource == of_group(index)]
            detail = admin_client.get(f"/admin/redlock_django/heldlock/{quote(one.pk)}/change/")
            assert [(bar.master, bar.kind) for bar in detail.context["bars"]] == [
                (f"{letter}{n}:6379", "own") for n in (1, 2, 3)
            ]
