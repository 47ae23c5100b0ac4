"""60 of 60 increments are kept, wherever in a view the lock is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest

from redlock_django.testing.masters import LocalMaster
from tests.live.increments.serving import Counters, Site, serving

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]

SYNC = ["function", "dispatch", "handler", "mixin", "rule", "with-lock"]
APIS = ["drf", "drf-mixin", "drf-action", "drf-mixin-action", "ninja", "ninja/function"]
ASYNC = ["async-function", "async-mixin", "async-with-lock"]
TIMES = 60
FEW = 12  # one of each client


def on(*servers: str, nightly: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Return the servers by day, and those of the nights.

    By day, tests/live/test_web_matrix.py has the other pairs of server and transactions, and the
    transactions of a middleware.
    """
    every_night = [pytest.param(server, marks=pytest.mark.nightly) for server in nightly]
    return pytest.mark.parametrize("site", [*servers, *every_night], indirect=True)


opposites = on("wsgi-atomic", "asgi-plain", nightly=("wsgi-plain", "asgi-atomic"))


@opposites
def test_no_increment_is_lost(site: Site, counters: Counters) -> None:
    pk = counters.new()
    statuses = site.press(f"/function/{pk}/", TIMES)
    assert set(statuses) == {200}, site.log
    assert counters.value(pk) == TIMES


@opposites
@pytest.mark.parametrize("kind", [*SYNC[1:], *APIS])
def test_no_increment_of_other_views_is_lost(site: Site, counters: Counters, kind: str) -> None:
    pk = counters.new()
    statuses = site.press(f"/{kind}/{pk}/", FEW)
    assert set(statuses) == {200}, site.log
    assert counters.value(pk) == FEW


@on("asgi-plain", nightly=("wsgi-plain",))
@pytest.mark.parametrize("kind", ASYNC)
def test_no_increment_of_an_async_view_is_lost(site: Site, counters: Counters, kind: str) -> None:
    pk = counters.new()
    times = TIMES if kind == "async-function" else FEW
    statuses = site.press(f"/{kind}/{pk}/", times)
    assert set(statuses) == {200}, site.log
    assert counters.value(pk) == times


@pytest.mark.attack
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("site", "kind"),
    [
        *product(("wsgi-atomic-outer", "wsgi-plain-outer"), [*SYNC, *APIS]),
        *product(("asgi-plain-outer", "wsgi-plain-outer"), ASYNC),
    ],
    indirect=["site"],
)
def test_no_increment_is_lost_inside_a_transaction_of_a_middleware(
    site: Site, counters: Counters, kind: str
) -> None:
    pk = counters.new()
    assert set(site.press(f"/{kind}/{pk}/", FEW)) == {200}, site.log
    assert counters.value(pk) == FEW


@on("wsgi-atomic", "asgi-plain")
def test_two_keys_in_opposite_order_do_not_block_each_other(site: Site, counters: Counters) -> None:
    pk = counters.new()
    paths = [f"/two-keys/{pk}/", f"/two-keys-turned/{pk}/"] * FEW
    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(site.post, paths)) == {200}, site.log
    assert counters.value(pk) == len(paths)


def test_two_databases_have_their_transactions_under_one_lock(
    counters: Counters, postgres: dict[str, Any], site_masters: list[LocalMaster]
) -> None:
    with serving(
        "wsgi", database=postgres, masters=site_masters, atomic=True, INCREMENTS_TWICE="1"
    ) as site:
        for kind in ("twice", "handler-twice"):
            pk = counters.new()
            assert set(site.press(f"/{kind}/{pk}/", FEW)) == {200}, site.log
            assert (counters.value(pk), counters.value(-pk)) == (FEW, FEW)


@opposites
def test_without_a_lock_increments_are_lost(site: Site, counters: Counters) -> None:
    pk = counters.new()
    for attempt in range(1, 6):
        site.press(f"/unlocked/{pk}/", TIMES)
        if counters.value(pk) < attempt * TIMES:
            return
    pytest.fail("nothing was ever lost: the tests above prove nothing")
