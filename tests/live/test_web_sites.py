"""Real servers: 60 of 60 increments are kept, and clients that disconnect leave no lock.

Every kind of view is in tests/live/test_web_matrix.py and tests/views/test_contract.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from redlock_django.testing.masters import LocalMaster
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


# Clients that disconnect, and streams.


@pytest.fixture
def pk(site: Site) -> int:
    return site.tables.counter()


def leave(site: Site, kind: str, pk: int, begun: Callable[[], bool] = lambda: True) -> None:
    """Send a request, wait until its lock is held and its work has begun, and disconnect."""
    with site.asking(f"/{kind}/{pk}/"):
        until(lambda: site.holders(pk) >= 3 and begun(), f"never locked or begun: {site.log}")


@on("asgi-plain-postgres")
def test_async_work_that_may_be_cancelled_stops_and_the_lock_is_free_at_once(
    site: Site, pk: int
) -> None:
    leave(site, "cancelled", pk)
    until(lambda: not site.holders(pk), "not freed at once", seconds=20)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("site", "kind"),
    [
        pytest.param("asgi-atomic-postgres", "slow", marks=pytest.mark.nightly),
        pytest.param("asgi-atomic-postgres", "slow-handler", marks=pytest.mark.nightly),
        ("asgi-plain-postgres", "slow"),
        ("asgi-plain-postgres", "slow-handler"),
        ("asgi-plain-postgres", "slow-thread"),
        ("asgi-plain-postgres", "slow-to-thread"),
        ("asgi-plain-postgres", "slow-pool"),
    ],
    indirect=["site"],
)
def test_a_thread_ends_its_work_and_only_then_the_lock_is_free(
    site: Site, pk: int, kind: str
) -> None:
    # A sync view works in the thread that has acquired the lock.
    is_async = kind in ("slow-thread", "slow-to-thread", "slow-pool")
    begun = (lambda: site.tables.value(-pk) == 1) if is_async else (lambda: True)
    leave(site, kind, pk, begun)
    seen: list[tuple[int, int]] = []

    def free() -> bool:
        held, value = site.holders(pk), site.tables.value(pk)
        seen.append((held, value))
        if len(seen) == 15:  # by then the server knows that its client has left
            site.tables.set(-pk, 2)  # the work may end
        return not held

    until(free, "never freed")
    assert site.tables.value(pk) == 2
    # Released means committed: no client has seen a released lock and the old value.
    assert seen[-1] == (0, 2)
    assert seen[0][0] >= 3
    assert seen[0][1] == 0
    committed = next(place for place, (_, value) in enumerate(seen) if value == 2)
    assert len(seen) - committed < 200, "seconds between COMMIT and release"


@pytest.mark.attack
@on("asgi-plain-postgres")
@pytest.mark.parametrize("kind", ["slow-to-thread", "slow-pool"])
def test_the_next_request_begins_after_the_commit_of_one_whose_client_has_left(
    site: Site, pk: int, kind: str
) -> None:
    leave(site, kind, pk, lambda: site.tables.value(-pk) == 1)
    with ThreadPoolExecutor() as pool, site.masters[0].client() as client:
        following = pool.submit(site.post, f"/async-function/{pk}/")
        queue = f"redlock:queue:counter:{pk}"
        until(lambda: following.done() or client.zcard(queue) > 0, "it does not come")
        time.sleep(0.2)  # until Django has cancelled the view; nothing shows that it did not
        assert not following.done()
        site.tables.set(-pk, 2)
        assert following.result(60) == 200
    assert site.tables.value(pk) == 3


@pytest.mark.fault
@on("wsgi-atomic-postgres", "asgi-plain-postgres")
def test_a_stream_keeps_its_lock_until_it_is_closed(site: Site, pk: int) -> None:
    kind = "async-stream" if site.server == "asgi" else "stream"
    with site.asking(f"/{kind}/{pk}/?chunks=900") as client:  # it does not end by itself
        assert client.recv(100)
        time.sleep(0.3)
        assert client.recv(100)
        assert site.holders(pk) >= 3
    until(lambda: not site.holders(pk), "not freed after the disconnect", seconds=30)
    # The content finishes its work under the lock.
    assert site.tables.value(pk) == (1 if kind == "async-stream" else 0)


@pytest.mark.fault
@on("wsgi-atomic-postgres", "asgi-plain-postgres")
def test_a_stream_that_is_read_to_its_end_frees_its_lock(site: Site, pk: int) -> None:
    kind = "async-stream" if site.server == "asgi" else "stream"
    answer = site.request("POST", f"/{kind}/{pk}/")
    assert (answer.status, len(answer.body)) == (200, 10_000)
    until(lambda: not site.holders(pk), "not freed at the end", seconds=20)


@pytest.mark.parametrize(
    "server",
    [
        pytest.param("wsgi", marks=pytest.mark.nightly),
        "asgi",
        pytest.param("runserver", marks=pytest.mark.nightly),
    ],
)
def test_forty_requests_leave_nothing_open(
    server: str, open_site: Callable[..., Any], site_masters: list[LocalMaster]
) -> None:
    name = f"{server}-plain-postgres"
    with open_site(name, site_masters, workers=1, PYTHONDEVMODE="1") as site:
        pk = site.tables.counter()
        for kind in ("function", "handler", "async-function", "async-mixin"):
            assert set(site.press(f"/{kind}/{pk}/", 10)) == {200}, site.log
        site.stop()
        assert site.tables.value(pk) == 40
        for trouble in ("ResourceWarning", "Traceback", "never awaited", "Exception ignored"):
            assert trouble not in site.log, site.log
