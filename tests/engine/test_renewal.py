"""When to extend next, for how long, and when to stop."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from redlock_django.engine.quorum import Verdict
from redlock_django.engine.renewal import SHORTEST, next_extension
from redlock_django.engine.validity import LeaseState, RedlockLease, valid_until
from tests.engine.masters import Masters

FOREVER = float("inf")


@pytest.fixture
def lease() -> RedlockLease:
    """Return a lease of ten seconds that began at 100."""
    taken = Masters().taken()
    return replace(taken, ttl=10.0, started=100.0, until=valid_until(10.0, 100.0))


@pytest.mark.parametrize(("now", "at"), [(100.01, pytest.approx(100 + 10 / 3)), (105.0, 105.0)])
def test_a_lease_is_extended_after_a_third_of_its_ttl_or_at_once(
    lease: RedlockLease, now: float, at: float
) -> None:
    assert next_extension(lease, now, ttl=10, hold_until=FOREVER) == (at, 10)


def test_a_lease_is_not_extended_after_its_deadline(lease: RedlockLease) -> None:
    assert next_extension(lease, lease.until, ttl=10, hold_until=FOREVER) is None
    unknown = LeaseState.UNKNOWN
    late = lease.until - 0.001
    assert next_extension(lease, late, ttl=10, hold_until=FOREVER, state=unknown) is None


def test_extensions_come_sooner_and_sooner_after_unknown_results(lease: RedlockLease) -> None:
    now, waits = 103.4, []
    while True:
        plan = next_extension(lease, now, ttl=10, hold_until=FOREVER, state=LeaseState.UNKNOWN)
        if plan is None:
            break
        waits.append(plan[0] - now)
        now = plan[0]
    assert all(later <= sooner + 1e-9 for sooner, later in pairwise(waits))
    assert waits[0] == pytest.approx((lease.until - 103.4) / 4)
    assert waits[-1] == pytest.approx(0.005)
    assert len(waits) > 10
    assert lease.until - now < 0.01


def test_an_extension_that_would_gain_nothing_is_not_made(lease: RedlockLease) -> None:
    assert next_extension(lease, 101, ttl=10, hold_until=109.9) is None
    assert next_extension(lease, 101, ttl=1, hold_until=FOREVER) is None
    used_up = lease.started + lease.ttl / 3 + SHORTEST / 2  # by the drift
    assert next_extension(lease, 101, ttl=10, hold_until=used_up) is None


@pytest.mark.parametrize(("ttl", "survives"), [(0.6, False), (1.0, True)])
def test_a_lock_on_a_bare_majority_survives_the_loss_of_a_master_if_its_ttl_is_long_enough(
    ttl: float, survives: bool
) -> None:
    """A process had connected to three of five masters; one of those hangs at once."""
    timeout = 0.25  # a round without a majority waits for so long
    masters = Masters(5)
    lease = masters.run(masters.acquire(ttl=ttl), down=(3, 4))
    state, end = LeaseState.RENEWED, FOREVER
    for _ in range(4):
        plan = next_extension(lease, masters.now, ttl=ttl, hold_until=end, state=state)
        if plan is None:
            break
        masters.now, seconds = plan
        protocol = masters.extend(lease, seconds)
        step = masters.hear(next(protocol), deaf=(0,))
        if step.tally.verdict is not Verdict.WON:
            masters.now += timeout
        state, lease = masters.end(protocol)
    assert (state is LeaseState.RENEWED) is survives
