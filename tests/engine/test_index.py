"""The index of held resources: what it lists, and that it cleans itself."""

from __future__ import annotations

import pytest

from redlock_django.engine.errors import ResourceLocked
from tests.engine.lua_mutation import lua
from tests.engine.masters import Masters
from tests.engine.mutants import kills


def listed(masters: Masters) -> set[bytes]:
    """Return the resources that the index of the first master shows as held."""
    memory = masters.memories[0]
    return set(memory.keyspace.still_held(masters.deployment.held, memory.keyspace.time() // 1000))


def stored(masters: Masters) -> int:
    """Return the number of resources in that index, expired ones included."""
    return len(masters.memories[0].keyspace.sorted_set(masters.deployment.held).keys() - {b""})


def index_exists(masters: Masters) -> bool:
    """Return whether the first master has the key of the index."""
    return bool(masters.memories[0].keyspace.sorted_set(masters.deployment.held))


@kills(
    "a lock is set without its place in the index",
    "acquire",
    lua(
        "add_to_index(ttl, KEYS[4])",
        "add_to_index(-1, KEYS[4])",
        ("add_to_index(ttl, KEYS[2 + 2 * index])", "add_to_index(-1, KEYS[2 + 2 * index])"),
    ),
)
def test_a_killed_process_leaves_nothing_in_the_index() -> None:
    masters = Masters(1, max_ttl=5.0)
    for number in range(300):
        masters.taken(f"r{number}", ttl=5.0)
    masters.now += 5.1
    assert listed(masters) == set()
    assert stored(masters) == 300, "no client has locked meanwhile"
    masters.now += 5.0
    assert not index_exists(masters)


@kills("a grant prolongs a new index only", "index", lua("-math.floor(now_ms / MAX_TTL)", "-1"))
@kills("the index ends with its period", "index", lua("KEYS[2], 2 * MAX_TTL)", "KEYS[2], MAX_TTL)"))
def test_every_period_of_max_ttl_prolongs_the_index() -> None:
    masters = Masters(1, max_ttl=5.0)
    start = masters.now
    for seconds in (0.0, 4.9, 5.1, 14.0, 22.0):
        masters.now = start + seconds
        masters.taken(f"at {seconds}", ttl=5.0)
        masters.now += 4.95
        assert f"at {seconds}".encode() in listed(masters), "a held lock is always listed"
    masters.now += 5.1
    assert not index_exists(masters)


@kills("the trim ends the period", "index",
       lua("redis.call('ZRANGEBYSCORE', KEYS[2], 0,",
           "redis.call('ZRANGEBYSCORE', KEYS[2], '-inf',"))  # fmt: skip
def test_the_last_release_leaves_the_index_to_the_next_grant() -> None:
    masters = Masters(1, max_ttl=5.0)
    start = masters.now
    for step in range(40):  # some of these grants remove expired entries
        masters.now = start + step / 10_000
        masters.run(masters.release(masters.taken(ttl=5.0)))
        assert listed(masters) == set()
        assert index_exists(masters)
    masters.now = start + 9.99
    assert index_exists(masters)
    masters.now = start + 10.1
    assert not index_exists(masters), "prolonged once in its period"


def test_one_grant_in_sixty_four_removes_expired_entries_of_the_index(master: Masters) -> None:
    for number in range(120):
        master.taken(f"r{number}", ttl=1.0)
    master.now += 1.1
    memory = master.memories[0]
    begin = memory.keyspace.time() // 64 * 64
    left = []
    for step in range(129):
        memory.keyspace.time = lambda step=step: begin + step  # type: ignore[misc]
        lease = master.taken("s")
        left.append(stored(master) - 1)  # without the new lock
        master.run(master.release(lease))
    assert left == [20] * 64 + [0] * 65


@kills("a late release stays in the index", "release",
       lua("redis.pcall('ZREM', KEYS[1], key:sub(NAME))",
           "if lock then redis.pcall('ZREM', KEYS[1], key:sub(NAME)) end"))  # fmt: skip
def test_a_release_after_the_expiry_removes_its_entry(master: Masters) -> None:
    late = master.taken("r1", ttl=5.0)
    master.taken("r2", ttl=60.0)  # keeps the index
    master.now += 5.1
    assert stored(master) == 2
    master.run(master.release(late))
    assert stored(master) == 1


@kills("a lock is listed once", "index", lua("'CH', now_ms + left", "'NX', now_ms + left"))
@kills("an extension does not prolong the index", "extend",
       lua("add_to_index(ttl, KEYS[2 + index])"))  # fmt: skip
def test_an_extended_lock_stays_listed(master: Masters) -> None:
    lease = master.taken(ttl=1.0)
    master.now += 0.9
    master.run(master.extend(lease, 20.0))
    master.now += 19.0
    assert listed(master) == {b"r"}


@kills("the index has no end", "index", lua("type(added) == 'number' and added > 1", "false"))
@kills("a foreign lock is listed for ever", "acquire",
       lua("lasts < 0 and MAX_TTL or lasts", "lasts < 0 and 2^60 or lasts"))  # fmt: skip
def test_a_foreign_lock_without_expiry_is_listed_while_clients_contend_for_it() -> None:
    masters = Masters(1, max_ttl=5.0)
    masters.memories[0].keyspace.set(masters.deployment.lock("r"), b"foreign")
    for _ in range(3):
        with pytest.raises(ResourceLocked):
            masters.taken()
        assert listed(masters) == {b"r"}
        masters.now += 4.0
        assert listed(masters) == {b"r"}
        masters.now += 1.1
        assert listed(masters) == set()
    masters.now += 5.0
    assert not index_exists(masters)


@kills("a foreign lock that ends when it did hides a new period", "acquire",
       lua("redis.pcall('ZREM', KEYS[2], KEYS[at]:sub(NAME))"))  # fmt: skip
def test_contention_for_a_foreign_lock_prolongs_the_index_in_a_new_period() -> None:
    masters = Masters(1, max_ttl=5.0)
    masters.now = period = masters.now // 5.0 * 5.0 + 5.0
    masters.memories[0].keyspace.set(masters.deployment.lock("r"), b"foreign", 5500)
    for seconds in (0.1, 5.1):  # the lock ends at the same moment for both
        masters.now = period + seconds
        with pytest.raises(ResourceLocked):
            masters.taken()
        assert listed(masters) == {b"r"}
    masters.now = period + 9.9
    masters.taken("s", ttl=5.0)
    masters.now = period + 14.8
    assert listed(masters) == {b"s"}, "a held lock is always listed"
