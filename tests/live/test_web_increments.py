"""60 of 60 increments are kept by real servers.

Every kind of view is in tests/live/test_web_matrix.py and tests/views/test_contract.py.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from redlock_django.testing.masters import LocalMaster
from tests.live.increments.serving import Counters, Site, holders
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]

TIMES = 60
FEW = 12  # one for each client


def on(*servers: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("site", servers, indirect=True)


@pytest.mark.parametrize(
    ("site", "kind"),
    [
        ("wsgi-atomic", "function"),
        ("wsgi-atomic", "with-lock"),
        ("asgi-plain", "function"),
        ("asgi-plain", "async-function"),
        pytest.param("wsgi-plain", "async-function", marks=pytest.mark.nightly),
    ],
    indirect=["site"],
)
def test_no_increment_is_lost(site: Site, counters: Counters, kind: str) -> None:
    pk = counters.new()
    statuses = site.press(f"/{kind}/{pk}/", TIMES)
    assert set(statuses) == {200}, site.log
    assert counters.value(pk) == TIMES


@on("wsgi-atomic", "asgi-plain")
def test_two_keys_in_opposite_order_do_not_block_each_other(site: Site, counters: Counters) -> None:
    pk = counters.new()
    paths = [f"/two-keys/{pk}/", f"/two-keys-turned/{pk}/"] * FEW
    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(site.post, paths)) == {200}, site.log
    assert counters.value(pk) == len(paths)


@on("wsgi-atomic", "asgi-plain")
def test_without_a_lock_increments_are_lost(site: Site, counters: Counters) -> None:
    pk = counters.new()
    for attempt in range(1, 6):
        site.press(f"/unlocked/{pk}/", TIMES)
        if counters.value(pk) < attempt * TIMES:
            return
    pytest.fail("nothing was ever lost: the tests above prove nothing")


@pytest.mark.fault
@on("wsgi-atomic")
@pytest.mark.parametrize("kind", ["slow", "slow-handler"])
def test_what_was_written_under_a_lock_that_is_lost_is_rolled_back(
    site: Site, counters: Counters, site_masters: list[LocalMaster], kind: str
) -> None:
    pk = counters.new()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(
            site.request, "POST", f"/{kind}/{pk}/", headers={"Accept": "application/json"}
        )
        until(lambda: holders(site_masters, pk) >= 2, "the lock")
        for master in site_masters:
            with master.client() as client:
                client.delete(f"redlock:lock:counter:{pk}")
        until(lambda: f"counter:{pk}: the lock was lost" in site.log, "the loss")
        counters.set(-pk, 2)  # the view may end
        status, body = answer.result(60)
    assert (status, json.loads(body)["code"]) == (503, "lock-lost")
    assert counters.value(pk) == 0
    assert site.post(f"/function/{pk}/") == 200
    assert counters.value(pk) == 1
