"""Clients that disconnect, streams, and servers that leave no lock."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from redlock_django.testing.masters import LocalMaster
from tests.live.increments.serving import Counters, Site, holders, serving
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]


nightly = pytest.mark.nightly


def on(*servers: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("site", servers, indirect=True)


@pytest.fixture
def pk(counters: Counters) -> int:
    return counters.new()


def leave(
    site: Site,
    path: str,
    masters: list[LocalMaster],
    pk: int,
    begun: Callable[[], bool] = lambda: True,
) -> None:
    """Send a request, wait until its lock is held and its work has begun, and disconnect."""
    with site.asking(path):
        until(
            lambda: holders(masters, pk) >= 2 and begun(),
            f"never locked or begun: {site.log}",
        )


@on("asgi-plain")
def test_async_work_that_may_be_cancelled_stops_and_the_lock_is_free_at_once(
    site: Site, site_masters: list[LocalMaster], pk: int
) -> None:
    leave(site, f"/cancelled/{pk}/", site_masters, pk)
    until(lambda: not holders(site_masters, pk), "not freed at once", seconds=20)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("site", "kind"),
    [
        pytest.param("asgi-atomic", "slow", marks=nightly),
        pytest.param("asgi-atomic", "slow-handler", marks=nightly),
        ("asgi-plain", "slow"),
        ("asgi-plain", "slow-handler"),
        ("asgi-plain", "slow-thread"),
        ("asgi-plain", "slow-to-thread"),
        ("asgi-plain", "slow-pool"),
    ],
    indirect=["site"],
)
def test_a_thread_ends_its_work_and_only_then_the_lock_is_free(
    site: Site, site_masters: list[LocalMaster], counters: Counters, pk: int, kind: str
) -> None:
    # A sync view works in the thread that has acquired the lock.
    is_async = kind in ("slow-thread", "slow-to-thread", "slow-pool")
    begun = (lambda: counters.value(-pk) == 1) if is_async else (lambda: True)
    leave(site, f"/{kind}/{pk}/", site_masters, pk, begun)
    seen: list[tuple[int, int]] = []

    def free() -> bool:
        held, value = holders(site_masters, pk), counters.value(pk)
        seen.append((held, value))
        if len(seen) == 15:  # by then the server knows that its client has left
            counters.set(-pk, 2)  # the work may end
        return not held

    until(free, "never freed")
    assert counters.value(pk) == 2
    # Released means committed: no client has seen a released lock and the old value.
    assert seen[-1] == (0, 2)
    assert seen[0][0] >= 2
    assert seen[0][1] == 0
    committed = next(place for place, (_, value) in enumerate(seen) if value == 2)
    assert len(seen) - committed < 200, "seconds between COMMIT and release"


@pytest.mark.attack
@on("asgi-plain")
@pytest.mark.parametrize("kind", ["slow-to-thread", "slow-pool"])
def test_the_next_request_begins_after_the_commit_of_one_whose_client_has_left(
    site: Site, site_masters: list[LocalMaster], counters: Counters, pk: int, kind: str
) -> None:
    leave(site, f"/{kind}/{pk}/", site_masters, pk, lambda: counters.value(-pk) == 1)
    with ThreadPoolExecutor() as pool, site_masters[0].client() as client:
        following = pool.submit(site.post, f"/async-function/{pk}/")
        queue = f"redlock:queue:counter:{pk}"
        until(lambda: following.done() or client.zcard(queue) > 0, "it does not come")
        time.sleep(0.2)  # until Django has cancelled the view; nothing shows that it did not
        assert not following.done()
        counters.set(-pk, 2)
        assert following.result(60) == 200
    assert counters.value(pk) == 3


@pytest.mark.fault
@on("wsgi-atomic", "asgi-plain")
def test_a_stream_keeps_its_lock_until_it_is_closed(
    site: Site, site_masters: list[LocalMaster], counters: Counters, pk: int
) -> None:
    kind = "async-stream" if site.server == "asgi" else "stream"
    with site.asking(f"/{kind}/{pk}/?chunks=900") as client:  # it does not end by itself
        assert client.recv(100)
        time.sleep(0.3)
        assert client.recv(100)
        assert holders(site_masters, pk) >= 2
    until(lambda: not holders(site_masters, pk), "not freed after the disconnect", seconds=30)
    # The content finishes its work under the lock.
    assert counters.value(pk) == (1 if kind == "async-stream" else 0)


@pytest.mark.fault
@on("wsgi-atomic", "asgi-plain")
def test_a_stream_that_is_read_to_its_end_frees_its_lock(
    site: Site, site_masters: list[LocalMaster], pk: int
) -> None:
    kind = "async-stream" if site.server == "asgi" else "stream"
    status, body = site.request("POST", f"/{kind}/{pk}/")
    assert (status, len(body)) == (200, 10_000)
    until(lambda: not holders(site_masters, pk), "not freed at the end", seconds=20)


@pytest.mark.parametrize(
    "server",
    [pytest.param("wsgi", marks=nightly), "asgi", pytest.param("runserver", marks=nightly)],
)
def test_forty_requests_leave_nothing_open(
    server: str, postgres: dict[str, Any], site_masters: list[LocalMaster], counters: Counters
) -> None:
    pk = counters.new()
    with serving(
        server,
        database=postgres,
        masters=site_masters,
        atomic=False,
        workers=1,
        PYTHONDEVMODE="1",
    ) as site:
        for kind in ("function", "handler", "async-function", "async-mixin"):
            assert set(site.press(f"/{kind}/{pk}/", 10)) == {200}, site.log
        site.stop()
        assert counters.value(pk) == 40
        for trouble in ("ResourceWarning", "Traceback", "never awaited", "Exception ignored"):
            assert trouble not in site.log, site.log
