"""How long a lease is valid, and the minimum hold, for which a lock stays whatever happens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redlock_django.engine import rounds, validity
from redlock_django.engine.errors import ResourceLocked
from redlock_django.engine.validity import RedlockLease, drift, valid_until
from tests.engine.lua_mutation import lua
from tests.engine.masters import Masters
from tests.engine.mutants import kills
from tests.engine.mutation import never, returns
from tests.engine.test_index import listed


@pytest.mark.parametrize(
    ("ttl", "expected"), [(0.1, 0.003), (1.0, 0.012), (10.0, 0.102), (60.0, 0.602)]
)
def test_drift_is_one_percent_and_two_milliseconds(ttl: float, expected: float) -> None:
    assert drift(ttl) == pytest.approx(expected)


def test_validity_counts_from_before_the_first_byte() -> None:
    assert valid_until(10.0, 1000.0) == pytest.approx(1009.898)


@kills("no drift", validity.drift, returns("0.0"))
def test_the_key_outlives_the_lease_at_any_rate_within_the_drift() -> None:
    """The client is slow and the master fast by 0.45 % each: the key must outlive the lease."""
    for ttl in (0.1, 0.5, 1.0, 10.0, 60.0):
        lease_ends = (ttl - drift(ttl)) / (1 - 0.0045)
        key_goes = round(ttl * 1000) / 1000 / (1 + 0.0045)
        assert key_goes > lease_ends


def test_a_lease_never_shows_its_tally_and_knows_its_token() -> None:
    lease = Masters().taken("a", "b")
    assert lease.value == f"{lease.token} {{}}"
    assert len(lease.token) == 32
    assert "tally" not in repr(lease)
    assert lease.resources == ("a", "b")


def test_the_fingerprint_tells_holders_apart_and_is_no_token(masters: Masters) -> None:
    first, second = masters.taken("a"), masters.taken("b")
    assert len(first.fingerprint) == 8
    assert first.fingerprint not in first.value
    assert first.fingerprint != second.fingerprint


# A minimum hold.


def released(masters: Masters, lease: RedlockLease, held_for: float, **how: object) -> bool | None:
    protocol = masters.release(lease, held_for=held_for)
    return masters.run(protocol, **how)  # type: ignore[arg-type]


def refused(masters: Masters) -> float:
    """Return the seconds after which a client that is refused should ask again."""
    with pytest.raises(ResourceLocked) as error:
        masters.taken()
    assert error.value.retry_after is not None
    return error.value.retry_after


@kills("a refusal has no TTL", "acquire", lua("index, left, stored", "index, 0, stored"))
@kills("a release ends the minimum hold", rounds.release, never("held_for > 0"))
def test_a_released_lock_stays_held_until_its_minimum_hold_is_over(masters: Masters) -> None:
    lease = masters.taken("r", ttl=10.0)
    masters.now += 1.0
    assert released(masters, lease, 4.0) is True
    assert refused(masters) == pytest.approx(4.042)
    masters.now += 3.99
    assert refused(masters) < 0.1
    masters.now += 0.1
    following = masters.taken("r")
    assert following.fences[0] > lease.fences[0]


@kills("a minimum hold without drift", validity.with_drift, returns("seconds"))
def test_the_lock_stays_long_enough_on_masters_whose_clocks_run_faster(masters: Masters) -> None:
    released(masters, masters.taken(ttl=10.0), 5.0)
    masters.now += 5.0
    masters.off = [0.05] * 3  # in these 5 s the clocks of all masters went 1 % further
    refused(masters)


@kills("a late release prolongs the lock", "release",
       lua("lock == value and redis.call('PTTL', key) > left", "lock == value"))  # fmt: skip
def test_a_release_that_arrives_late_or_twice_prolongs_nothing(masters: Masters) -> None:
    lease = masters.taken(ttl=5.0)
    released(masters, lease, 2.0)
    masters.now += 1.5
    released(masters, lease, 2.0)
    masters.now += 0.6
    masters.taken()


@kills("any lock is shortened", "release", lua("elseif lock == value and", "elseif left > 0 and"))
def test_only_the_lock_of_this_token_is_shortened(masters: Masters) -> None:
    lost = masters.taken(ttl=1.0)
    masters.now += 1.1
    masters.taken(ttl=10.0)
    assert released(masters, lost, 0.5) is False
    masters.now += 5.0
    refused(masters)
    masters.now += 6.0
    assert released(masters, lost, 0.5) is False, "the master has forgotten it"


def test_several_resources_stay_held_together(masters: Masters) -> None:
    released(masters, masters.taken("r", "s", ttl=10.0), 3.0)
    masters.now += 2.9
    for name in ("r", "s"):
        with pytest.raises(ResourceLocked):
            masters.taken(name)
    masters.now += 0.2
    masters.taken("r", "s")


@kills(
    "the index keeps the old expiry",
    "release",
    lua("redis.pcall('ZADD', KEYS[1], 'XX', math.floor(now / 1000) + left, key:sub(NAME))"),
)
def test_the_index_shows_when_the_lock_ends(master: Masters) -> None:
    released(master, master.taken(ttl=10.0), 1.0)
    assert listed(master) == {b"r"}
    master.now += 1.1
    assert listed(master) == set()


@kills("a waiter sleeps by the old TTL", "release",
       lua("local channel = first and first:match('^(.*) ')", "local channel"))  # fmt: skip
def test_the_first_waiter_is_asked_to_try_again_and_learns_the_new_ttl(masters: Masters) -> None:
    lease = masters.taken(ttl=10.0)
    waiting = masters.acquire(wait=9.0, waiter="redlock:wake:a 1")
    masters.hear(next(waiting))
    masters.after_undo(waiting)
    released(masters, lease, 2.0)
    assert masters.called == []
    assert masters.watching == [(index, "redlock:wake:a 1") for index in range(3)]
    masters.now += 0.11
    masters.hear(waiting.send(masters.now))
    began = masters.now
    masters.carry(waiting, masters.after_undo(waiting))
    assert masters.now - began == pytest.approx(2.022 - 0.11, abs=0.01)


@kills("an early release leaves its waiter", "release", lua("redis.pcall('ZREM', queue, waiter)"))
def test_a_release_removes_its_waiter_from_the_queues(masters: Masters) -> None:
    lease = replace(masters.taken(ttl=10.0), waiter="redlock:wake:a 1")
    for memory in masters.memories:
        memory.keyspace.sets[masters.deployment.queue("r")] = {b"redlock:wake:a 1": 1.0}
    released(masters, lease, 2.0)
    assert masters.queues() == [[], [], []]
    assert masters.watching == []


def test_a_lease_reads_no_clock_unless_it_has_a_minimum_hold() -> None:
    lease = Masters(3).taken()
    assert lease.held_for(lambda: 1 / 0) == 0.0
    assert replace(lease, earliest_end=7.0).held_for(lambda: 5.0) == 2.0
    assert replace(lease, earliest_end=7.0).held_for(lambda: 9.0) == 0.0
