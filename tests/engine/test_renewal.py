"""When to extend next, for how long, and when to stop."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from redlock_django.engine.renewal import SHORTEST, next_extension
from redlock_django.engine.validity import LeaseState, RedlockLease, valid_until
from tests.engine.masters import Masters

FOREVER = float("inf")


@pytest.fixture
def lease() -> RedlockLease:
    """Return a lease of ten seconds that began at 100."""
    taken = Masters().taken()
    return replace(taken, ttl=10.0, started=100.0, until=valid_until(10.0, 100.0))


def test_after_a_third_of_the_ttl(lease: RedlockLease) -> None:
    plan = next_extension(lease, 100.01, ttl=10, hold_until=FOREVER)
    assert plan is not None
    assert plan[0] == pytest.approx(100 + 10 / 3)
    assert plan[1] == 10


def test_at_once_where_that_is_over(lease: RedlockLease) -> None:
    assert next_extension(lease, 105.0, ttl=10, hold_until=FOREVER) == (105.0, 10)


def test_never_after_the_deadline(lease: RedlockLease) -> None:
    assert next_extension(lease, lease.until, ttl=10, hold_until=FOREVER) is None
    unknown = LeaseState.UNKNOWN
    late = lease.until - 0.001
    assert next_extension(lease, late, ttl=10, hold_until=FOREVER, state=unknown) is None


def test_sooner_and_sooner_after_rounds_that_found_out_nothing(lease: RedlockLease) -> None:
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


def test_not_beyond_the_end_of_the_hold(lease: RedlockLease) -> None:
    plan = next_extension(lease, 101, ttl=10, hold_until=110.0)
    assert plan is not None
    when, asked = plan
    assert when + asked == pytest.approx(110.0)


def test_none_where_an_extension_would_gain_nothing(lease: RedlockLease) -> None:
    assert next_extension(lease, 101, ttl=10, hold_until=109.9) is None
    assert next_extension(lease, 101, ttl=1, hold_until=FOREVER) is None


def test_none_where_it_would_be_used_up_by_the_drift(lease: RedlockLease) -> None:
    when = lease.started + lease.ttl / 3
    assert next_extension(lease, 101, ttl=10, hold_until=when + SHORTEST / 2) is None
