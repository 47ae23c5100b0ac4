"""Clocks of real masters that are wrong, step, go back, or run at another rate."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from redlock_django.engine.errors import NotAcquired, QuorumUnreachable, ResourceLocked
from redlock_django.engine.quorum import Tally
from redlock_django.engine.validity import LeaseState
from redlock_django.wire.clock import clock, wall_ns
from redlock_django.wire.links.clock_steps import StepWatch
from redlock_django.wire.links.master import Master
from tests.engine.lua_mutation import lua, mutate_script
from tests.live.clocks import WALL, ClockedMaster, NoShim, clocked_masters
from tests.live.removed_rules import guards_both
from tests.ports import free_port
from tests.waiting import until
from tests.wire.variants import (
    Variant,
    both,
    joined,
    make_backend,
    open_variant,
    sharing,
    trust,
    trusted,
)

if TYPE_CHECKING:
    from pathlib import Path

    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live

MINUTE = 60.0
Clocked = list[ClockedMaster]


@pytest.fixture(scope="module")
def three_clocked(shim: Path) -> Iterator[Clocked]:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(clocked_masters(shim, 3))
        except NoShim as why:
            pytest.skip(str(why))
        yield made


@pytest.fixture
def clocked(three_clocked: Clocked) -> Clocked:
    """Return three empty masters whose clocks are right."""
    for each in three_clocked:
        each.set(0)
        with each.master.client() as client:
            client.flushall()
            client.script_flush()
    return three_clocked


def masters_of(clocked: Clocked) -> list[LocalMaster]:
    return [each.master for each in clocked]


def urls(clocked: Clocked) -> list[str]:
    return [each.master.url for each in clocked]


@pytest.mark.fault
@guards_both
@pytest.mark.parametrize("known", [True, False], ids=["seen", "unseen"])
def test_a_clock_a_minute_ahead_makes_no_second_holder(
    name: str, known: bool, guarded: bool, clocked: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holds masters 1 and 2; the clock of 2 steps, and the lock of A expires there at once.

    B reaches all three masters. It was connected before the step and sees it, or connects later.
    """
    if not guarded:
        monkeypatch.setattr(Tally, "_near", lambda self, vote, middle: True)
        monkeypatch.setattr(StepWatch, "note", lambda self, master, low, high: True)
        # The last guard: a confirmation refuses a fence that is a minute ahead of the clock.
        mutate_script(monkeypatch, "confirm", lua("> now + 2 *", "> 9e99 + now + 2 *"))
    away = f"redis://127.0.0.1:{free_port()}/0"
    seen = [*urls(clocked)[:2], away], urls(clocked)
    with sharing(name, masters_of(clocked), *seen, max_ttl=MINUTE) as (a, b):
        if known:
            b.start()
            b.wait_usable(3)
        a.start()
        held = a.acquire("order:1", ttl=MINUTE - 20)
        a.settle()
        clocked[1].set(MINUTE)
        if not known:
            b.start()
            b.wait_usable(3)
        if guarded:
            with pytest.raises(NotAcquired):
                b.acquire("order:1")
        else:
            b.acquire("order:1")
        assert clock() < held.until


@pytest.mark.fault
@both
def test_a_clock_that_stays_a_minute_ahead_is_left_out(name: str, clocked: Clocked) -> None:
    with joined(name, masters_of(clocked), restart_delay=0.0) as variant:
        clocked[1].set(MINUTE)
        lease = variant.acquire("order:1")
        variant.settle()
        variant.release(lease)
        variant.wait_usable(3)  # the step is marked and its delay is over; the clock is still off
        lease = variant.acquire("order:1")
        assert lease.fences[0] < time.time_ns() // 1000 + 1_000_000
        _, lease = variant.extend(lease)
        variant.settle()
        assert re.fullmatch(
            r"its clock is \+(59|60).\d s off the other .*", lease.tally.reasons()[1]
        )
        assert variant.release(lease) is True


@pytest.mark.fault
@guards_both
def test_a_lock_from_before_the_clocks_went_back_is_shortened(
    name: str, guarded: bool, clocked: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a dead holder's lock of 20 seconds would block the resource for over a minute."""
    if not guarded:
        mutate_script(monkeypatch, "acquire", lua("lasts > MAX_TTL and", "false and"))
    backend = make_backend(urls(clocked), max_ttl=20.0)
    with open_variant(name, backend) as dead:
        dead.start()
        dead.wait_usable(3)
        dead.acquire("order:1", ttl=20.0)
        dead.settle()
        for each in clocked:
            each.set(-MINUTE)
            trust(each.master, backend.deployment)
    with open_variant(name, make_backend(urls(clocked), max_ttl=20.0)) as variant:
        until(lambda: usable_again(variant), "the client has a link to each master")
        with pytest.raises(ResourceLocked):
            variant.acquire("order:1")
        variant.settle()
        for each in clocked:
            with each.master.client() as client:
                assert (client.pttl("redlock:lock:order:1") <= 20_000) is guarded
                client.delete("redlock:lock:order:1")
        # The resource still has to wait until the clocks have passed its old fence.
        with pytest.raises(QuorumUnreachable, match="its fence is ahead of its clock"):
            variant.acquire("order:1")


def usable_again(variant: Variant) -> bool:
    try:
        variant.release(variant.acquire("order:2"))
    except QuorumUnreachable:
        return False
    return variant.usable() == 3


@pytest.mark.slow
@pytest.mark.fault
@guards_both
def test_masters_are_trusted_in_time_although_their_clocks_went_back(
    name: str, guarded: bool, clocked: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their clocks, the time from which they are trusted is more than a minute ahead."""
    if not guarded:
        mutate_script(monkeypatch, "join", lua(" and tonumber(at) <= now + delay", ""))
    backend = make_backend(urls(clocked), restart_delay=0.5)
    for each in clocked:
        trust(each.master, backend.deployment)
        each.set(-MINUTE)
    with open_variant(name, backend) as variant:
        began = clock()
        with suppress(QuorumUnreachable):
            variant.release(variant.acquire("order:1"))
            assert clock() - began >= 0.5, "they are trusted too early"
        variant.wait_joined()
        if guarded:
            variant.wait_usable(3)
            # A check that is read late moves the moment from which its master is trusted.
            assert variant.release(variant.acquire("order:1", wait=10)) is True
        else:
            until(
                lambda: all(is_trusted_much_later(m) for m in variant.links.masters),
                "the masters are trusted only after 30 s",
            )


def is_trusted_much_later(master: Master) -> bool:
    return master.trust is not None and master.trust.ready > clock() + 30


@pytest.mark.fault(without=("the step is not marked",))
@both
@pytest.mark.parametrize("asked", [True, False], ids=["asked meanwhile", "not asked"])
def test_a_clock_that_steps_and_comes_back(name: str, asked: bool, clocked: Clocked) -> None:
    """A client that asks in between notices the step. Otherwise, one master has lost the lock."""
    with trusted(name, masters_of(clocked), restart_delay=0.5) as variant:
        lease = variant.acquire("order:1")
        variant.settle()
        clocked[1].set(MINUTE)
        assert not clocked[1].has("order:1"), (
            "the lock has not expired on the master whose clock stepped"
        )
        if asked:
            assert variant.release(variant.acquire("order:2")) is True
            until(lambda: variant.doubt(1) == "its clock stepped", "the step is noticed")
        clocked[1].set(0)
        state, lease = variant.extend(lease)
        assert state is LeaseState.RENEWED, "the other two masters have not extended it"
        variant.settle()
        vote = lease.tally.votes[1]
        assert vote is not None
        assert vote.absent is not asked
        variant.wait_usable(3)  # long before a minute
        assert variant.release(lease) is True


@pytest.mark.fault(without=("fences from the clock alone",))
@both
def test_fences_order_two_holders_after_a_step_too_small_to_notice(
    name: str, clocked: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps up to MAX_CLOCK_SKEW are assumed not to happen while a lock is held."""
    reached, away = urls(clocked), f"redis://127.0.0.1:{free_port()}/0"
    seen = [*reached[:2], away], [away, *reached[1:]]
    with sharing(name, masters_of(clocked), *seen, max_clock_skew=30.0, max_ttl=MINUTE) as (a, b):
        for variant in (a, b):
            variant.start()
            variant.wait_usable(2)
        held = a.acquire("order:1", ttl=18.0)  # which the step ends on master 2
        a.settle()
        clocked[1].set(20.0)
        # The second holder has the earlier clock, so the fence does not grow because of its clock.
        monkeypatch.setattr(WALL, lambda: wall_ns() - 10_000_000_000)
        taken = b.acquire("order:1")
        assert clock() < held.until
        assert taken.fences > held.fences


@pytest.mark.fault
@both
@pytest.mark.parametrize(("rate", "bounded"), [(1.005, True), (200.0, False)])
def test_a_master_whose_clock_runs_faster(
    name: str, rate: float, bounded: bool, clocked: Clocked
) -> None:
    """Up to 1 % faster, the lease ends before its keys expire; 200 times faster, it does not."""
    with joined(name, masters_of(clocked)) as variant:
        lease = variant.acquire("order:1", ttl=0.6 if bounded else 8.0)
        variant.settle()
        for each in clocked:
            each.clock.set(rate=rate)
        until(lambda: not any(each.has("order:1") for each in clocked), "the keys have expired")
        assert (clock() >= lease.until) is bounded
