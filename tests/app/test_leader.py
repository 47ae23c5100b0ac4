"""`leader()` in this process: campaigns, terms, losses, and what is refused."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction
from pytest_django import Settings

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
from tests.app.conftest import MEMORY, elsewhere, memory_backend, stop_clocks, wake_renewals
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


def test_a_term_outlasts_max_hold(settings: Settings) -> None:
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "TTL": 9, "MAX_HOLD": 20}}
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


@contextmanager
def soon(function: object) -> Iterator[None]:
    """Call a function in half a second."""
    timer = threading.Timer(0.5, function)  # type: ignore[arg-type]
    timer.start()
    yield
    timer.join()


@in_both_ways
async def test_a_candidate_survives_an_outage(
    way: SyncWay, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redlock_django.locking.leader.ATTEMPT", 0.05)
    memory_backend().refuse(0)
    with (
        caplog.at_level(logging.WARNING, "redlock_django"),
        soon(lambda: memory_backend().restore(0)),
    ):
        async with way.block(leader("scheduler")) as term:
            term.ensure_held()
    assert [record.getMessage().partition(":")[0] for record in caplog.records].count(
        "redlock scheduler"
    ) == 1


def test_an_alias_that_proceeds_without_a_quorum_has_no_leader_without_one(
    settings: Settings,
) -> None:
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "ON_UNAVAILABLE": "proceed"}}
    memory_backend().refuse(0)
    with soon(lambda: memory_backend().restore(0)), leader("scheduler") as term:
        assert term.number > 0


def test_a_candidate_that_waits_longer_than_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redlock_django.locking.leader.ATTEMPT", 0.1)  # as `leader()` reads it
    lease = memory_backend().acquire(("scheduler",), 60, 0, "{}")
    with soon(lambda: memory_backend().release(lease)), leader("scheduler") as term:
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
