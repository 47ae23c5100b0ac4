"""Reports of other threads to links: results of connecting, and markers to read again."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from weakref import WeakSet

import pytest

from redlock_django.engine.errors import QuorumUnreachable
from redlock_django.wire.drivers.loop import Arrival, LoopDriver
from redlock_django.wire.drivers.threads import ThreadDriver
from redlock_django.wire.links.master import Master
from redlock_django.wire.servers.trust import Unfit
from tests.waiting import until
from tests.wire.variants import make_backend

URLS = [f"unix:///nowhere/{index}.sock" for index in range(3)]


def test_a_loop_that_stands_still_keeps_one_result_for_each_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Master, "backoff", lambda self: 0.002)
    attempts: list[Unfit] = []
    real = LoopDriver.deliver

    def deliver(self: LoopDriver, index: int, result: Unfit) -> bool:
        attempts.append(result)
        return real(self, index, result)

    monkeypatch.setattr(LoopDriver, "deliver", deliver)
    backend = make_backend(URLS)
    loop = asyncio.new_event_loop()

    async def ask() -> LoopDriver:
        with suppress(QuorumUnreachable):
            await backend.aacquire(("r",), 5.0, 0.0, "{}")
        return backend.loop_driver()

    links = loop.run_until_complete(ask()).links
    begun = len(attempts)
    until(lambda: len(attempts) > begun + 15, "many attempts to connect")
    assert len(loop._ready) <= 3 + 2  # type: ignore[attr-defined]
    assert all(result.__traceback__ is None for result in attempts)
    gc.collect()
    # isinstance() would also ask weak proxies for their class, of which some are dead.
    waiting = [one for one in gc.get_objects() if type(one) is Arrival]
    assert all(len(arrival._results) <= 1 for arrival in waiting)
    # The loop still hears of the next attempts, and of the end.
    failures = links.masters[0].failures

    async def turn() -> None:
        for _ in range(6000):
            await asyncio.sleep(0.01)
            if links.masters[0].failures > failures + 3:
                return
        raise AssertionError("no result arrives any more")

    loop.run_until_complete(turn())
    loop.run_until_complete(backend.aclose())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def test_the_latest_result_counts() -> None:
    arrival = Arrival()
    first, second = Unfit("first"), Unfit("second")
    arrival.scheduled = True
    arrival.put(first)
    arrival.put(second)
    assert arrival.take() is second
    assert arrival.scheduled is False
    assert arrival.take() is None


class AskedAtOnce(WeakSet):  # type: ignore[type-arg]
    """Readers that are asked to read again as soon as they are known, as by another thread."""

    def add(self, item: LoopDriver | ThreadDriver) -> None:
        super().add(item)
        item.look_again()


async def test_links_can_be_asked_to_read_markers_from_the_first_moment() -> None:
    backend = make_backend(URLS)
    backend.membership.readers = AskedAtOnce()
    assert backend.thread_driver() in backend.membership.readers
    assert backend.loop_driver() in backend.membership.readers
    backend.close()
    await backend.aclose()
