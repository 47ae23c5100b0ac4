"""Inspection and forced release on five real masters."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation

from redlock_django import lock, locks
from redlock_django.engine.inspection.holders import HoldingState
from redlock_django.exceptions import LockLost
from redlock_django.operate.forced_release import Freed, ReleaseOutcome, force_release
from redlock_django.operate.health import master_status
from redlock_django.operate.inspection import held_locks, who_holds
from redlock_django.signals import lock_force_released
from tests.live.left_over import nothing_left
from tests.operate.planted import plant
from tests.waiting import until
from tests.wire.test_waiters import queued

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster

pytestmark = [
    pytest.mark.live, pytest.mark.django_db, pytest.mark.usefixtures("linked_masters")
]  # fmt: skip
VALUE = "a" * 32 + ' {"host":"web1","pid":7,"app":"shop","at":1790000000.5,"path":"/pay/"}'


def only(**asked: Any) -> Any:
    (holding,) = held_locks(**asked).locks
    return holding


def test_a_lock_that_a_waiter_has_got_is_listed_by_a_majority(masters: list[LocalMaster]) -> None:
    async def wait() -> int:
        async with lock("order:1", ttl=60, wait=60) as held:
            listed = 0
            for master in masters:
                with master.client() as client:
                    listed += client.zscore("redlock:held", "order:1") is not None
            assert (await asyncio.to_thread(only)).fingerprint == held.fingerprint
        await locks.aclose()
        return listed

    with ThreadPoolExecutor(1) as pool, lock("order:1", ttl=60):
        listed = pool.submit(asyncio.run, wait())
        until(lambda: queued(masters, "order:1") == [1] * 5, what="queued by all")
        time.sleep(0.1)  # so that it sleeps, and gets the lock from the release if that can be
    assert listed.result(60) >= 3


def test_a_foreign_lock_without_expiry_is_listed_once_it_contends(
    masters: list[LocalMaster],
) -> None:
    for master in masters:
        with master.client() as client:
            client.set("redlock:lock:order:9", "theirs")
    assert not held_locks().locks
    found = only(search="order:9")  # the exact name is read, listed in the index or not
    assert (found.state, found.ttl) == (HoldingState.FOREIGN, None)
    assert not lock("order:9").locked
    with pytest.raises(Exception, match="held"):
        lock("order:9").acquire()
    assert only().resource == "order:9"


def test_only_the_living_are_counted(masters: list[LocalMaster]) -> None:
    plant(masters, "order:1")
    for master in masters:
        with master.client() as client:
            client.zadd("redlock:held", {f"dead:{number}": 1 for number in range(300)})
    assert {one.health.held for one in master_status() if one.health} == {1}
    assert [one.resource for one in held_locks().locks] == ["order:1"]


def test_the_index_expires_after_its_last_lock(masters: list[LocalMaster]) -> None:
    with lock("order:1", ttl=5) as held:
        held.extend(50)
        for master in masters:
            with master.client() as client:
                index = 0

                def is_extended(client: Any = client) -> bool:  # a late master may not be yet
                    nonlocal index
                    index = client.pttl("redlock:held")
                    return bool(client.pttl("redlock:lock:order:1") > 5_000)

                until(is_extended, "extended")
                assert client.pttl("redlock:lock:order:1") <= index <= 120_000  # twice MAX_TTL


@pytest.mark.slow
def test_ten_thousand_locks_are_read(masters: list[LocalMaster]) -> None:
    for master in masters:
        with master.client() as client:
            now = client.time()[0] * 1000
            pipe = client.pipeline(transaction=False)
            for number in range(10_001):
                pipe.set(f"redlock:lock:n:{number}", VALUE, px=600_000 + number)
                pipe.zadd("redlock:held", {f"n:{number}": now + 600_000 + number})
            pipe.execute()
    found = held_locks()
    assert found.truncated
    assert {one.resource for one in found.locks} == {f"n:{number}" for number in range(10_000)}
    assert [one.resource for one in held_locks(search="n:10000").locks] == ["n:10000"]


@pytest.mark.attack
def test_a_search_is_literal(masters: list[LocalMaster]) -> None:
    for name in ("order:1", "order:21", "user:1"):
        plant(masters, name, path="/pay/")
    found = sorted(holding.resource for holding in held_locks(search="order").locks)
    assert found == ["order:1", "order:21"]
    for glob in ("*", "order?1", "[a-z]", "\\", "^o"):
        assert not held_locks(search=glob).locks


def test_inspection_is_refused_in_a_running_loop() -> None:
    async def page() -> None:
        with pytest.raises(SynchronousOnlyOperation):
            held_locks()

    asyncio.run(page())


# Forced release: only of the lock that was shown, with a log line and a signal.

R = "order:1"


def everywhere(masters: list[LocalMaster]) -> None:
    until(lambda: len(who_holds(R).locks[0].leading) == len(masters), what="on all masters")


@pytest.mark.attack
def test_the_lock_that_was_shown_is_released_and_its_holder_loses_it(
    masters: list[LocalMaster], caplog: Any
) -> None:
    received: list[Freed] = []

    def receive(sender: Any, freed: Freed, by: str, **_: Any) -> None:
        received.append(freed)
        assert by == "root\\n@host"

    lock_force_released.connect(receive)
    held = lock(R, holder={"path": "/<b>/"}).acquire()
    everywhere(masters)
    fence = held.fence
    with caplog.at_level(logging.WARNING):
        freed = force_release(R, by="root\n@host", fingerprint=held.fingerprint)
    assert freed.outcome is ReleaseOutcome.RELEASED
    assert list(freed.masters.values()) == ["released"] * 5
    assert received == [freed]
    line = next(r.getMessage() for r in caplog.records if "by force" in r.getMessage())
    assert "\n" not in line
    assert line.startswith(f"redlock {R}: lock {held.fingerprint} of ")
    assert "was released by force by root\\n@host: released (" in line
    assert (freed.resource, freed.holder["path"]) == (R, "/<b>/")
    assert "'path': '/<b>/'" in line
    token = held._held_lease.lease.token  # type: ignore[union-attr]
    assert token not in f"{line}{freed}"
    nothing_left(masters, 6)
    with pytest.raises(LockLost):
        held.extend()
    with lock(R) as second:  # the token does not come back, and the fence grows
        assert second.fence > fence


def test_a_foreign_lock_of_any_bytes_can_be_released(masters: list[LocalMaster]) -> None:
    for master in masters:
        with master.client() as client:
            client.set(f"redlock:lock:{R}", b"\xff\x00 theirs")
    freed = force_release(R, by="me")
    assert freed.outcome is ReleaseOutcome.RELEASED
    assert freed.holder == {}
    nothing_left(masters)


def test_without_a_fingerprint_every_holder_of_a_split_vote_is_released(
    masters: list[LocalMaster],
) -> None:
    for number, master in enumerate(masters):
        with master.client() as client:
            client.set(f"redlock:lock:{R}", f"{'abcde'[number] * 32} {{}}")
    one = who_holds(R).locks[0].rivals[0]
    assert force_release(R, by="me", fingerprint=one.fingerprint).outcome is ReleaseOutcome.RELEASED
    assert len(who_holds(R).locks[0].rivals) == 3
    assert force_release(R, by="me").outcome is ReleaseOutcome.RELEASED
    nothing_left(masters)
