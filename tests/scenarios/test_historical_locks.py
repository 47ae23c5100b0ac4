"""The locks that docs/how-to/migrate.md describes: each fails. That ours do not: its links.

The historical locks are written as they were published. Each story is played step by step, so
that nothing depends on timing but the expiry of a key.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from redlock_django import ResourceLocked, lock
from tests.waiting import until

if TYPE_CHECKING:
    from redis import Redis

    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live
A, B, C = "A", "B", "C"
Client = Callable[[Callable[[], Any]], Any]
KEY = "order:1"


def is_refused() -> bool:
    """Return whether another client of ours is refused the lock."""
    with ThreadPoolExecutor(1) as thread:
        try:
            thread.submit(lock(KEY, using="default").acquire).result(90).release()
        except ResourceLocked:
            return True
    return False


# SETNX, then EXPIRE.


def test_setnx_then_expire_is_locked_for_ever_after_a_crash(redis: Redis) -> None:
    assert redis.setnx(KEY, A)
    # A is killed here, before redis.expire(KEY, 10).
    assert redis.ttl(KEY) == -1, "no TTL: the key stays until an operator deletes it"
    assert not redis.setnx(KEY, B)


# SETNX and GETSET, with the time at which the lock ends as the value.


class Getset:
    """The lock of Redis' documentation until 2.6.12, with the clock of its client."""

    def __init__(self, redis: Redis, now: float) -> None:
        self.redis, self.now, self.value = redis, now, b""

    def acquire(self, between: Callable[[], object] = lambda: None) -> bool:
        self.value = b"%d" % (self.now + 10)
        if self.redis.setnx(KEY, self.value):
            return True
        ends = self.redis.get(KEY)
        between()
        if ends is None or float(ends) > self.now:
            return False
        return self.redis.getset(KEY, self.value) == ends


def test_getset_has_two_holders_if_a_clock_is_ahead(redis: Redis) -> None:
    assert Getset(redis, now=1000).acquire()
    assert Getset(redis, now=1000 + 60).acquire(), "B's clock is a minute ahead"


def test_getset_of_a_loser_overwrites_the_lock_of_the_winner(redis: Redis) -> None:
    redis.set(KEY, 999)  # the lock of a client that has crashed
    b, c = Getset(redis, now=1000), Getset(redis, now=1005)
    assert not c.acquire(between=b.acquire), "b is first"
    assert b.value != redis.get(KEY) == c.value, "the lock of b now ends when c wanted"


def test_a_lock_does_not_read_the_clock_of_a_client(
    ours: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lock(KEY) as held:
        for ahead in (60, -60):
            monkeypatch.setattr(
                "redlock_django.backends.redis.backend.wall_ns",
                lambda by=ahead: 10**9 * (2 * 10**9 + by),
            )
            assert is_refused()
        held.verify()


# DEL by a holder that is late.


def test_a_late_del_frees_the_lock_of_the_next_holder(redis: Redis) -> None:
    assert redis.set(KEY, A, nx=True, px=1)
    until(lambda: not redis.exists(KEY), "A is paused until its TTL has ended")
    assert redis.set(KEY, B, nx=True, px=10_000)
    redis.delete(KEY)  # A goes on, and releases
    assert redis.set(KEY, C, nx=True, px=10_000), "B and C have it"


# One master and its replica.


def test_a_failover_forgets_the_newest_locks(masters: list[LocalMaster]) -> None:
    master, replica = masters[3:]
    with master.client() as at_master, replica.client() as at_replica:
        at_master.config_set("repl-diskless-sync-delay", 0)
        at_replica.replicaof("127.0.0.1", str(master.port))
        until(lambda: at_replica.info("replication")["master_link_status"] == "up", "in step")
        at_replica.replicaof("127.0.0.1", "1")  # its link to the master is cut
        assert at_master.set(KEY, A, nx=True, px=10_000)
        master.kill()
        at_replica.replicaof("NO", "ONE")  # the failover
        assert at_replica.set(KEY, B, nx=True, px=10_000), "A and B have it"


# A machine that was forgotten in a deployment.


def test_an_old_list_of_servers_has_a_majority_of_its_own(masters: list[LocalMaster]) -> None:
    def majority(of: list[LocalMaster], who: str) -> bool:
        clients = [master.client() for master in of]
        return sum(bool(c.set(KEY, who, nx=True, px=10_000)) for c in clients) >= 2

    assert majority(masters[:3], A), "the old machine, with the servers 1, 2, 3"
    assert majority(masters[2:], B), "the new machines, with the servers 3, 4, 5"


# A row without an expiry.


def test_a_row_without_expiry_is_locked_for_ever_after_a_crash(sql: psycopg.Connection) -> None:
    sql.execute("CREATE TEMPORARY TABLE held (resource text PRIMARY KEY, owner text)")
    sql.execute("INSERT INTO held VALUES (%s, %s)", [KEY, A])
    # A is killed here, before DELETE FROM held.
    with pytest.raises(psycopg.errors.UniqueViolation):
        sql.execute("INSERT INTO held VALUES (%s, %s)", [KEY, B])
