"""60 of 60 increments are kept by real servers.

Every kind of view is in tests/live/test_web_matrix.py and tests/views/test_contract.py.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.live.site.serving import Site
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]

TIMES = 60
FEW = 12  # one for each client


def on(*servers: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("site", servers, indirect=True)


@pytest.mark.parametrize(
    ("site", "kind"),
    [
        ("wsgi-atomic-postgres", "function"),
        ("wsgi-atomic-postgres", "with-lock"),
        ("asgi-plain-postgres", "function"),
        ("asgi-plain-postgres", "async-function"),
        pytest.param("wsgi-plain-postgres", "async-function", marks=pytest.mark.nightly),
    ],
    indirect=["site"],
)
def test_no_increment_is_lost(site: Site, kind: str) -> None:
    pk = site.tables.counter()
    statuses = site.press(f"/{kind}/{pk}/", TIMES)
    assert set(statuses) == {200}, site.log
    assert site.tables.value(pk) == TIMES


@on("wsgi-atomic-postgres", "asgi-plain-postgres")
def test_two_keys_in_opposite_order_do_not_block_each_other(site: Site) -> None:
    pk = site.tables.counter()
    paths = [f"/two-keys/{pk}/", f"/two-keys-turned/{pk}/"] * FEW
    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(site.post, paths)) == {200}, site.log
    assert site.tables.value(pk) == len(paths)


@on("wsgi-atomic-postgres", "asgi-plain-postgres")
def test_without_a_lock_increments_are_lost(site: Site) -> None:
    pk = site.tables.counter()
    for attempt in range(1, 6):
        site.press(f"/unlocked/{pk}/", TIMES)
        if site.tables.value(pk) < attempt * TIMES:
            return
    pytest.fail("nothing was ever lost: the tests above prove nothing")


@pytest.mark.fault
@on("wsgi-atomic-postgres")
@pytest.mark.parametrize("kind", ["slow", "slow-handler"])
def test_what_was_written_under_a_lock_that_is_lost_is_rolled_back(site: Site, kind: str) -> None:
    pk = site.tables.counter()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(
            site.request, "POST", f"/{kind}/{pk}/", headers={"Accept": "application/json"}
        )
        until(lambda: site.holders(pk) >= 3, "the lock")
        for master in site.masters:
            with master.client() as client:
                client.delete(f"redlock:lock:counter:{pk}")
        until(lambda: f"counter:{pk}: the lock was lost" in site.log, "the loss")
        site.tables.set(-pk, 2)  # the view may end
        assert (answer.result(60).status, answer.result().code) == (503, "lock-lost")
    assert site.tables.value(pk) == 0
    assert site.post(f"/function/{pk}/") == 200
    assert site.tables.value(pk) == 1
