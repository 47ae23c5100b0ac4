"""`leader()` in this process: campaigns, terms, losses, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial, partialmethod
from itertools import count
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction

from redlock_django import (
    AlreadyHeld,
    BadResource,
    InvalidRedlock,
    LockLost,
    NotHeld,
    ResourceLocked,
    leader,
    lock,
)
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.locking.leader import current_terms
from redlock_django.testing import lose_lock
from tests.app.conftest import (
    Configure,
    elsewhere,
    memory_backend,
    stop_clocks,
    wake_renewals,
)
from tests.app.ways import SyncWay, in_both_ways
from tests.losses import ends_lost
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("memory")


def test_a_term_is_a_lock_with_a_number_and_a_beginning() -> None:
    with leader("scheduler") as first:
        first.ensure_held()
        assert datetime.now(UTC) - first.since < timedelta(minutes=1)
        assert first.leads
        with pytest.raises(ResourceLocked):
            elsewhere(lock("scheduler").acquire)
    assert list(current_terms("default")) == []
    with pytest.raises(NotHeld):
        first.ensure_held()
    with leader("scheduler") as second:
        assert second.number > first.number


def test_a_term_outlasts_max_hold(memory: Configure) -> None:
    memory(TTL=9, MAX_HOLD=20)
    stop_clocks()
    with leader("scheduler") as term:
        for _ in range(14):  # of three seconds, so twice MAX_HOLD is over
            before = term.remaining()
            MemoryBackend.advance(3)
            wake_renewals()
            until(lambda before=before: term.remaining() == before, "the term was extended")  # type: ignore[misc]
        term.ensure_held()


def test_a_lost_term_is_reported_and_the_next_one_can_begin() -> None:
    campaign = leader("scheduler")
    with ends_lost(), campaign as term:
        lose_lock("scheduler")
        assert not term.leads
        with pytest.raises(LockLost, match="scheduler"):
            term.ensure_held()
    with campaign as term:
        term.ensure_held()


@pytest.fixture
def at_third_attempt(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Return a function whose argument is called as the third attempt of a candidate begins."""
    for name, seconds in (("ATTEMPT", 0.05), ("_SHORTEST_PAUSE", 0.01), ("_LONGEST_PAUSE", 0.01)):
        monkeypatch.setattr(f"redlock_django.locking.leader.{name}", seconds)

    def set_up(act: Callable[[], object]) -> None:
        attempts = count(1)

        def counted(real: Any, *arguments: Any) -> Any:
            if next(attempts) == 3:
                act()
            return real(*arguments)

        for name in ("acquire", "aacquire"):
            real = getattr(MemoryBackend, name)
            monkeypatch.setattr(MemoryBackend, name, partialmethod(partial(counted, real)))

    return set_up


@in_both_ways
async def test_a_candidate_survives_an_outage(
    way: SyncWay, at_third_attempt: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    memory_backend().refuse(0)
    at_third_attempt(lambda: memory_backend().restore(0))
    with caplog.at_level(logging.WARNING, "redlock_django"):
        async with way.block(leader("scheduler")) as term:
            term.ensure_held()
    said = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert said.count("redlock scheduler") == 1


def test_an_alias_that_proceeds_without_a_quorum_has_no_leader_without_one(
    at_third_attempt: Callable[..., None], memory: Configure
) -> None:
    memory(ON_UNAVAILABLE="proceed").refuse(0)
    at_third_attempt(lambda: memory_backend().restore(0))
    with leader("scheduler") as term:
        assert term.number > 0


@in_both_ways
async def test_a_candidate_that_waits_longer_than_one_attempt(
    way: SyncWay, at_third_attempt: Callable[..., None]
) -> None:
    lease = memory_backend().acquire(("scheduler",), 60, 0, "{}")
    at_third_attempt(lambda: memory_backend().release(lease))
    async with way.block(leader("scheduler")) as term:
        term.ensure_held()


def test_leading_twice_in_one_thread_is_refused() -> None:
    with leader("scheduler"), pytest.raises(AlreadyHeld), leader("scheduler"):
        pass


# What is refused.


@pytest.mark.django_db(transaction=True)
def test_inside_a_transaction() -> None:
    with (
        transaction.atomic(),
        pytest.raises(InvalidRedlock, match=r"Write transaction.atomic\(\) inside the block"),
        leader("scheduler"),
    ):
        pass


def test_as_a_decorator() -> None:
    with pytest.raises(InvalidRedlock, match=r"needs @lock_resource\('scheduler'\)"):

        @leader("scheduler")
        def view(request: object) -> None: ...

    with pytest.raises(InvalidRedlock, match="needs a name"):
        leader(test_as_a_decorator)  # type: ignore[arg-type]


def test_bad_arguments() -> None:
    with pytest.raises(BadResource):
        leader("a b")
    with pytest.raises(ValueError, match="ttl is 1000 s and MAX_TTL is 60 s: lower ttl or raise"):
        leader("scheduler", ttl=1000)
    with pytest.raises(InvalidRedlock, match="no alias 'other'"):
        leader("scheduler", using="other")


async def test_a_plain_block_in_a_loop() -> None:
    with pytest.raises(SynchronousOnlyOperation), leader("scheduler"):
        pass
