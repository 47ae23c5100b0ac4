"""Renewal of many locks over slow networks: all that are due are extended together."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.locking.lock import Lock, lock
from redlock_django.locking.services import locks
from redlock_django.signals import lock_lost
from tests.live.linked import linked
from tests.timeouts import generous_timeouts
from tests.waiting import stalls
from tests.wire.proxy import behind

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live


def acquire_all(many: int, ttl: float) -> list[Lock]:
    """Return so many locks, acquired by 20 threads."""
    held: list[Lock] = []

    def acquire(first: int) -> None:
        numbers = range(first, many, 20)
        held.extend(
            lock(f"order:{number}", ttl=ttl, wait=60, renew=True).acquire() for number in numbers
        )

    threads = [threading.Thread(target=acquire, args=[first]) for first in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) == many
    return held


@pytest.mark.slow
@pytest.mark.parametrize(
    ("many", "round_trip", "ttl"),
    [
        pytest.param(100, 0.02, 3.0, id="100"),
        pytest.param(1000, 0.05, 6.0, id="1000", marks=pytest.mark.nightly),
    ],
)
def test_many_locks_are_renewed_over_a_slow_network(
    masters: list[LocalMaster], settings: Settings, many: int, round_trip: float, ttl: float
) -> None:
    lost: list[str] = []

    def receive(resources: tuple[str, ...], **arguments: Any) -> None:
        lost.extend(resources)

    with ExitStack() as stack:
        proxies = stack.enter_context(behind(masters[:3]))
        urls = [proxy.url for proxy in proxies]
        settings.REDLOCK = {
            "default": {"MASTERS": urls, "RESTART_DELAY": 0, **generous_timeouts(ttl)}
        }
        linked()
        for proxy in proxies:
            proxy.delay_up = proxy.delay_down = round_trip / 2
        lock_lost.connect(receive)
        stack.callback(lock_lost.disconnect, receive)
        held = acquire_all(many, ttl)
        stalled = stack.enter_context(stalls())
        # As long as it would take for a lease that is never extended to expire, twice.
        threading.Event().wait(2 * ttl)
        shortest = min(one.remaining() for one in held) + stalled()
        for proxy in proxies:
            proxy.delay_up = proxy.delay_down = 0.0
        for one in held:
            one.release()
        locks["default"].backend.close()
    assert lost == []
    assert shortest > ttl / 3
