"""Two groups of three real masters: exclusion, outages, interrupts, and a change of groups."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.backends.redis import RedisBackend
from redlock_django.backends.sharded.backend import ShardedBackend
from redlock_django.exceptions import QuorumUnreachable, ResourceLocked
from redlock_django.locking.lock import lock
from redlock_django.locking.services import locks
from redlock_django.testing import held_elsewhere
from redlock_django.testing.masters import LocalMaster, local_masters
from redlock_django.wire.servers.handshake import Unfit
from redlock_django.wire.servers.trust_declaration import MasterState, close
from tests.live.left_over import locked, nothing_left
from tests.operate.commands import run
from tests.timeouts import generous_timeouts
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def six_masters() -> Iterator[list[LocalMaster]]:
    with local_masters(6) as started:
        yield started


@pytest.fixture
def six(six_masters: list[LocalMaster]) -> list[LocalMaster]:
    for master in six_masters:
        if master.alive:
            master.resume()
        else:
            master.start()
        with master.client() as client:
            client.flushall()
    return six_masters


def section(*groups: Sequence[LocalMaster], **more: Any) -> dict[str, Any]:
    urls: list[Any] = [[master.url for master in group] for group in groups]
    return {
        "default": {
            "MASTERS": urls[0] if len(urls) == 1 else urls,
            "RESTART_DELAY": 0,
            "TTL": 5,
            **generous_timeouts(1.5),
            **more,
        }
    }


@pytest.fixture
def site(six: list[LocalMaster], settings: Settings) -> list[LocalMaster]:
    settings.REDLOCK = section(six[:3], six[3:])
    with lock(of_group(0), of_group(1)):
        until(lambda: all(usable(index) == 3 for index in (0, 1)), what="a link to every master")
    return six


def backend() -> ShardedBackend:
    found = locks["default"].backend
    assert isinstance(found, ShardedBackend)
    return found


def usable(index: int) -> int:
    group = backend().shards[index]
    assert isinstance(group, RedisBackend)
    return group.thread_driver().links.planner.usable()


def of_group(index: int, nth: int = 0) -> str:
    names = (f"order:{n}" for n in range(1000))
    return [name for name in names if backend().shard_of(name) == index][nth]


def test_a_lock_is_stored_in_its_own_group_only(site: list[LocalMaster]) -> None:
    here, there = of_group(0), of_group(1)
    with lock(here, there):
        until(
            lambda: (
                (locked(site[:3]), locked(site[3:]))
                == ({f"redlock:lock:{here}": 3}, {f"redlock:lock:{there}": 3})
            )
        )
    nothing_left(site)


def test_a_lock_over_both_groups_and_single_ones_exclude_each_other(
    site: list[LocalMaster],
) -> None:
    here, there = of_group(0), of_group(1)
    inside = dict.fromkeys((here, there), 0)
    failed: list[BaseException] = []

    def work(*names: str) -> None:
        try:
            for _ in range(15):
                with lock(*names, wait=60):
                    for name in names:
                        inside[name] += 1
                        assert inside[name] == 1
                    for name in names:
                        inside[name] -= 1
        except BaseException as error:  # noqa: BLE001 - asserted below
            failed.append(error)

    every = [(here,), (there,), (here, there), (there, here)]
    threads = [threading.Thread(target=work, args=names) for names in every]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed
    nothing_left(site)


async def test_tasks_over_both_groups(site: list[LocalMaster]) -> None:
    names = (of_group(0), of_group(1))
    inside = 0

    async def work() -> None:
        nonlocal inside
        for _ in range(5):
            async with lock(*names, wait=60):
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                inside -= 1

    await asyncio.gather(*(work() for _ in range(4)))
    async with lock(*names) as taken:
        assert await taken.aextend() > 4
    await asyncio.to_thread(nothing_left, site)
    await locks.aclose()


def test_a_group_that_is_down_refuses_its_own_resources_only(site: list[LocalMaster]) -> None:
    for master in site[3:5]:
        master.kill()
    assert lock(of_group(0)).acquire().release()
    for names in ([of_group(1)], [of_group(0), of_group(1)]):
        with pytest.raises(QuorumUnreachable, match="2 of 3 masters of group 2"):
            lock(*names).acquire()
    nothing_left([*site[:3], site[5]])


@pytest.mark.parametrize("first", [0, 1])
def test_a_refusal_by_one_group_leaves_nothing_in_the_other(
    site: list[LocalMaster], first: int
) -> None:
    held = of_group(first)
    with lock(held):
        with pytest.raises(ResourceLocked) as caught, held_elsewhere(of_group(0), of_group(1)):
            pass
        assert caught.value.resource == held
        _only(site, held)
    nothing_left(site)


async def test_a_cancelled_wait_for_the_second_group_leaves_nothing(
    site: list[LocalMaster],
) -> None:
    names = (of_group(0), of_group(1))
    for held in names:
        async with lock(held):
            task = asyncio.ensure_future(lock(*names, wait=60).aacquire())
            await asyncio.sleep(0.3)  # whichever group comes first, the task waits now
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(_only, site, held)
    await asyncio.to_thread(nothing_left, site)
    await locks.aclose()


def _only(masters: Sequence[LocalMaster], name: str) -> None:
    until(lambda: list(locked(masters)) == [f"redlock:lock:{name}"])


def _hold_for_ever(names: tuple[str, ...], taken: Any) -> None:
    lock(*names, ttl=1.5, wait=60).acquire()
    taken.set()
    threading.Event().wait()


def test_locks_of_a_killed_holder_expire_in_both_groups(site: list[LocalMaster]) -> None:
    names = (of_group(0), of_group(1))
    context = multiprocessing.get_context("fork")
    taken = context.Event()
    process = context.Process(target=_hold_for_ever, args=(names, taken))
    process.start()
    assert taken.wait(60)
    process.kill()
    process.join(60)
    with lock(*names, wait=60) as ours:
        assert ours.locked
    nothing_left(site)


def test_a_forked_child_holds_nothing_of_both_groups(site: list[LocalMaster]) -> None:
    names = (of_group(0), of_group(1))
    context = multiprocessing.get_context("fork")
    with lock(*names) as ours:
        seen = context.Queue()

        def child() -> None:
            mine = ours.locked
            ours.release()
            try:
                lock(names[1]).acquire()
            except ResourceLocked:
                seen.put((mine, "refused"))
            else:
                seen.put((mine, "taken"))

        process = context.Process(target=child)
        process.start()
        assert seen.get(timeout=90) == (False, "refused")
        process.join(60)
        assert ours.locked
        assert len(locked(site)) == 2
    nothing_left(site)


# Changing the groups.


def test_a_new_group_refuses_clients_with_the_old_settings(
    six: list[LocalMaster], settings: Settings
) -> None:
    settings.REDLOCK = section(six[:3], MAX_TTL=0.6, TTL=0.5, MASTER_TIMEOUT=0.2)
    assert run("redlock_init").status == 0
    old = locks["default"].backend
    numbers = {"MAX_TTL": 0.6, "TTL": 0.5, "MASTER_TIMEOUT": 0.2}
    with_new = section(six[:3], six[3:], **numbers, RESTART_DELAY="auto")
    name = "order:1"
    lease = old.acquire((name,), 0.5, 60, "{}")
    settings.REDLOCK = with_new
    with pytest.raises(QuorumUnreachable, match="--reconfigure"):
        lock(of_group(0)).acquire()
    assert run("redlock_init").status == 2  # a planned change needs --reconfigure
    # Without RESTART_DELAY, clients would not wait for the locks of the old group.
    settings.REDLOCK = section(six[:3], six[3:], **numbers)
    ran = run("redlock_init", "--reconfigure")
    assert ran.status == 2
    assert "must be at least 3.112 s" in ran.said
    settings.REDLOCK = with_new
    ran = run("redlock_init", "--reconfigure")
    assert ran.out.count("trusted in ") == 6
    locks.close()
    for index in (0, 1):
        with pytest.raises(QuorumUnreachable, match="trusted in"):
            lock(of_group(index)).acquire()
    settings.REDLOCK = section(six[:3], MAX_TTL=0.6, TTL=0.5, MASTER_TIMEOUT=0.2)
    with pytest.raises(QuorumUnreachable, match="groups=2"):
        lock(name, wait=0.5).acquire()  # the masters refuse the old settings now
    settings.REDLOCK = with_new
    with lock(of_group(0), of_group(1), wait=60) as both:
        both.ensure_held()
    assert lease.until < locks["default"].backend.clock()


def test_an_interrupted_reconfiguration_allows_neither_old_nor_new_settings(
    six: list[LocalMaster], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDLOCK = old = section(six[:3], six[3:], RESTART_DELAY="auto")
    assert run("redlock_init").status == 0
    settings.REDLOCK = new = section(six[3:], six[:3][::-1], MAX_TTL=30, RESTART_DELAY="auto")
    target = "redlock_django.management.commands.redlock_init.close"

    def close_or_fail(state: MasterState, *more: Any) -> None:
        if state.address.name.endswith(f":{six[0].port}"):
            raise Unfit("went away")
        close(state, *more)

    with monkeypatch.context() as patched:
        patched.setattr(target, close_or_fail)
        ran = run("redlock_init", "--reconfigure")
    assert ran.status == 2
    assert "until this command is run again" in ran.said
    for settings.REDLOCK in (old, new):
        locks.close()
        with pytest.raises(QuorumUnreachable, match=",closed"):
            lock(*(f"order:{n}" for n in range(20))).acquire()
    ran = run("redlock_init", "--reconfigure")
    # The delay covers the old MAX_TTL of 60 s, which the closed masters remember.
    assert ran.out.count("trusted in 6") == 6


def test_one_server_in_two_groups_is_reported(six: list[LocalMaster], settings: Settings) -> None:
    urls = [[six[0].url, six[1].url, six[2].url], [six[0].unix_url, six[3].url, six[4].url]]
    settings.REDLOCK = {"default": {"MASTERS": urls, "RESTART_DELAY": 0, **generous_timeouts()}}
    ran = run("redlock_init")
    assert ran.status == 2
    assert "is the same server as" in ran.said
    ran = run("redlock_status", "--format=json")
    twins = [one["name"] for one in ran.json["masters"] if "twin" in str(one["faults"])]
    assert len(twins) == 2
