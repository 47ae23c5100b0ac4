"""The rules by which a lock over several shards follows from its parts, on scripted shards."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from redlock_django.backends.base import BaseBackend
from redlock_django.backends.sharded.backend import ShardedBackend
from redlock_django.backends.sharded.settings import ShardedSettings
from redlock_django.engine.errors import NotAcquired, QuorumUnreachable, StoreUnavailable
from redlock_django.engine.validity import Lease, LeaseState


class Clock:
    """A clock that only tests move."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Shard(BaseBackend):
    """A shard whose answers a test sets, and that notes what it is asked."""

    def __init__(self, name: str, clock: Clock, asked: list[str]) -> None:
        super().__init__("default", SimpleNamespace(identity=name))  # type: ignore[arg-type]
        self.clock = clock
        self.name = name
        self.asked = asked
        self.took = 0.0
        self.waited = 0.0
        self.error: NotAcquired | None = None
        self.released: bool | None = True
        self.is_void = False
        self.unknown = False
        self.posted: list[Lease] = []

    def acquire(
        self, resources: tuple[str, ...], ttl: float, wait: float, holder: str, limit: int = 1
    ) -> Lease:
        self.asked.append(self.name)
        started = self.clock()
        self.clock.now += self.took  # type: ignore[attr-defined]
        if self.error is not None:
            raise self.error
        return Lease(
            resources, self.name, holder, ttl, started, started + ttl, (7,) * len(resources),
            waited=self.waited,
        )  # fmt: skip

    def extend_all(
        self, asked: Sequence[tuple[Lease, float]]
    ) -> list[tuple[LeaseState, Lease] | Exception]:
        if self.error is not None:
            return [self.error] * len(asked)
        return [(LeaseState.RENEWED, lease) for lease, _ in asked]

    def release(self, lease: Lease) -> bool | None:
        self.posted.append(lease)
        return self.released

    def post_release(self, lease: Lease) -> None:
        self.posted.append(lease)

    def voided(self, lease: Lease) -> bool:
        return self.is_void

    def is_uncertain(self, lease: Lease) -> bool:
        return self.unknown


class Site:
    """Two shards as a process of a site has them, and a resource of each."""

    def __init__(self, names: Sequence[str] = ("a", "b")) -> None:
        self.clock, self.asked = Clock(), list[str]()
        shards = {name: Shard(name, self.clock, self.asked) for name in names}
        self.first, self.second = shards["a"], shards["b"]
        self.store = ShardedBackend(SimpleNamespace(), list(shards.values()))  # type: ignore[arg-type]
        found: dict[str, str] = {}
        for number in range(100):
            resource = f"order:{number}"
            found[self.store.shards[self.store.shard_of(resource)].identity] = resource
        self.resources = (found["a"], found["b"])

    def acquire(self, wait: float = 0.0) -> Lease:
        return self.store.acquire(self.resources, 10, wait, "{}")


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_all_processes_acquire_in_the_same_order(names: tuple[str, ...]) -> None:
    """Whatever the order of the groups in their settings; otherwise two locks would deadlock."""
    site = Site(names)
    site.acquire()
    assert site.asked == ["a", "b"]


def test_a_lock_whose_first_part_is_over_is_not_granted(site: Site) -> None:
    site.second.took = 11
    with pytest.raises(QuorumUnreachable, match="answered too slowly for the lock's TTL"):
        site.acquire()
    assert len(site.first.posted) == len(site.second.posted) == 1


def test_a_store_that_is_down_is_asked_once(site: Site) -> None:
    site.first.took, site.first.error = 1, StoreUnavailable("down")
    with pytest.raises(StoreUnavailable):
        site.acquire(wait=5)
    assert site.asked == ["a"]


def test_the_error_of_a_later_part_has_the_whole_time(site: Site) -> None:
    site.first.took = site.second.took = 2
    site.second.error = StoreUnavailable("down")
    with pytest.raises(StoreUnavailable) as refused:
        site.acquire(wait=1)
    assert refused.value.took == 2
    assert refused.value.waited == 2


@pytest.mark.parametrize("waited", [0.0, 1.5])
def test_a_lock_has_waited_if_a_part_has(site: Site, waited: float) -> None:
    site.first.took, site.first.waited = 3, waited
    assert site.acquire(wait=9).waited == (3 if waited else 0)


def test_a_lock_is_lost_with_one_part(site: Site) -> None:
    lease = site.acquire()
    assert not site.store.voided(lease)
    site.second.is_void = True
    assert site.store.voided(lease)


def test_a_lock_is_unknown_with_one_part(site: Site) -> None:
    lease = site.acquire()
    assert not site.store.is_uncertain(lease)
    site.second.unknown = True
    assert site.store.is_uncertain(lease)


def test_every_part_stays_held_until_the_end_of_the_minimum_hold(site: Site) -> None:
    lease = site.acquire()
    lease.earliest_end = 1008.0
    site.store.release(lease)
    site.store.post_release(lease)
    ends = [part.earliest_end for part in (*site.first.posted, *site.second.posted)]
    assert ends == [1008.0] * 4


@pytest.mark.parametrize(
    ("of_parts", "whole"),
    [((True, False), False), ((None, False), False), ((True, None), None), ((True, True), True)],
)
def test_a_release_reports_the_outcome_of_all_parts(
    site: Site, of_parts: tuple[bool | None, bool | None], whole: bool | None
) -> None:
    lease = site.acquire()
    site.first.released, site.second.released = of_parts
    assert site.store.release(lease) is whole


def test_the_later_deadline_of_each_part_counts_in_overlapping_extensions(site: Site) -> None:
    held, extended = site.acquire(), site.acquire()
    for lease, ends in ((held, (1020, 1010)), (extended, (1015, 1030))):
        for part, end in zip(lease.home, ends, strict=True):  # type: ignore[call-overload]
            part.lease.until = end
    merged = site.store.merged(held, extended)
    assert [part.lease.until for part in merged.home] == [1020, 1030]  # type: ignore[attr-defined]
    assert merged.until == 1020


def test_an_extension_of_which_a_part_fails_fails(site: Site) -> None:
    lease = site.acquire()
    site.second.error = StoreUnavailable("down")
    assert site.store.extend_all([(lease, 10)]) == [site.second.error]


def test_a_store_has_the_abilities_of_all_shards() -> None:
    clock, asked = Clock(), list[str]()
    shards = [Shard("a", clock, asked), Shard("b", clock, asked)]
    shards[0].is_fair = True
    shards[0].max_resources = 5
    store: Any = ShardedBackend(SimpleNamespace(), shards)  # type: ignore[arg-type]
    assert not store.is_fair
    assert store.is_shared
    assert store.max_resources == 5


def test_every_shard_checks_a_ttl() -> None:
    def refuse(ttl: float, name: str) -> None:
        raise ValueError(f"{name} is {ttl:g} s")

    good: Any = SimpleNamespace(check_ttl=lambda ttl, name: None)
    bad: Any = SimpleNamespace(check_ttl=refuse)
    with pytest.raises(ValueError, match="TTL is 90 s"):
        ShardedSettings(max_ttl=60, shards=(good, bad)).check_ttl(90, "TTL")
