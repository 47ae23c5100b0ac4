"""MAX_RECORDS: how many new keys one owner may use within MAX_RECORDS_WINDOW."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.cache import caches
from django.http import HttpResponse
from django.utils import timezone

from redlock_django import idempotent, lock_resource
from redlock_django.models import IdempotencyRecord
from redlock_django.testing import held_elsewhere
from tests.idempotency.conftest import Site, make_order, orders

pytestmark = pytest.mark.django_db(transaction=True)
WINDOW = 600


class Clock:
    """The time of the records; it begins with a window of the cache."""

    def __init__(self) -> None:
        now = time.time()
        self.now = datetime.fromtimestamp(now - now % WINDOW, UTC)

    def passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timezone, "now", lambda: clock.now)
    created_at: Any = IdempotencyRecord._meta.get_field("created_at")
    monkeypatch.setattr(created_at, "_get_default", lambda: clock.now)
    return clock


@pytest.fixture(params=["database"])
def limited(request: pytest.FixtureRequest, site: Site, clock: Clock) -> Site:
    """A site where each owner may use two new keys in ten minutes."""
    caches["default"].clear()
    site.configure(MAX_RECORDS=2, MAX_RECORDS_WINDOW=WINDOW)
    site.serve(idempotent(make_order))
    return site


def refused(answer: Any) -> int:
    """Return the Retry-After of a refusal."""
    assert answer.status_code == 429
    problem = answer.json()
    assert problem["code"] == "idempotency-too-many-records"
    assert (problem["retryable"], problem["safe_new_key"]) == (True, True)
    return int(answer["Retry-After"])


def test_one_key_too_many_is_refused_until_the_window_is_over(limited: Site, clock: Clock) -> None:
    clock.passes(100)
    assert limited.post("first").status_code == 201
    clock.passes(60)
    assert limited.post("second").status_code == 201
    clock.passes(40)
    wait = refused(limited.post("third"))
    # A database looks back from now. A cache has fixed windows; this one began 200 s ago.
    assert wait == 500
    assert orders() == 2
    clock.passes(wait)
    assert limited.post("third").status_code == 201
    assert orders() == 3


def test_replays_requests_without_a_key_and_other_users_are_not_limited(limited: Site) -> None:
    limited.post("first")
    limited.post("second")
    refused(limited.post("third"))
    assert limited.post("first")["Idempotent-Replayed"] == "true"
    assert limited.post(None).status_code == 201
    limited.client = limited.other_client()
    assert limited.post("third").status_code == 201


def test_a_refused_request_does_not_try_to_lock_the_resource(limited: Site) -> None:
    limited.serve(idempotent(lock_resource("orders")(make_order)))
    for key in ("first", "second"):
        assert limited.post(key).status_code == 201
    with held_elsewhere("orders"):
        refused(limited.post("third"))


def test_a_record_that_is_rolled_back_is_not_counted_in_a_database(
    site: Site, clock: Clock
) -> None:
    site.configure(MAX_RECORDS=1)
    statuses = iter([500, 500, 201])
    site.serve(idempotent(lambda request, **_: HttpResponse(status=next(statuses))))
    assert [site.post(key).status_code for key in "abc"] == [500, 500, 201]
    refused(site.post("d"))


@pytest.mark.parametrize("store", ["database"])
def test_visitors_with_one_anonymous_scope_share_one_limit(
    site: Site, clock: Clock, store: str
) -> None:
    caches["default"].clear()
    site.configure(MAX_RECORDS=1)
    site.serve(idempotent(anonymous_scope=lambda request, **_: request.headers["X-Ip"])(make_order))
    site.client.logout()
    assert site.post("a", headers={"X-Ip": "::1"}).status_code == 201
    refused(site.post("b", headers={"X-Ip": "::1"}))
    assert site.post("a", headers={"X-Ip": "::2"}).status_code == 201
