"""How long a lease is valid."""

from __future__ import annotations

import pytest

from redlock_django.engine import validity
from redlock_django.engine.validity import drift, valid_until
from tests.engine.masters import Masters
from tests.engine.mutants import kills
from tests.engine.mutation import returns


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
