"""A first waiter that cannot take the lock costs the next one a turn, and not the lock's TTL."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.left_over import locked
from tests.programs import Program, started
from tests.wire.test_waiters import wait_queued
from tests.wire.variants import joined, threads_by_day

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live

TTL = 30.0
SOON = 1.0
"""Seconds in which a waiter has the lock after a turn of 0.1 s that passes unused. A busy machine
may stop it for longer, but not each time."""

CHILD = """
import asyncio, sys, threading, time
from tests.wire.variants import make_backend

how, urls = sys.argv[1], sys.argv[2:]
print("ready", flush=True)
backend = make_backend(urls, max_ttl=60.0, master_timeout=3.0, connect_timeout=5.0)
asked = ("order:1",), 30.0, 60.0, '{"child":1}'

async def wait():
    waiting = asyncio.ensure_future(backend.aacquire(*asked))
    await asyncio.to_thread(sys.stdin.readline)
    return waiting

if how == "thread":
    backend.acquire(*asked)
loop = asyncio.new_event_loop()
waiting = loop.run_until_complete(wait())
if how == "closed loop":
    loop.close()  # as by a program that calls neither asyncio.run nor shutdown_asyncgens
print("gone", flush=True)
time.sleep(60)
"""


def kill(child: Program) -> None:
    child.kill()
    child.wait()


def stop(child: Program) -> None:
    """Stop it for good."""
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)


def leave_loop(child: Program) -> None:
    """Make its loop, which is blocked or closed then, run no further."""
    child.say("")
    assert child.hear() == "gone"


WAYS = {
    "killed": ("thread", kill),
    "stopped": ("thread", stop),
    "blocked loop": ("blocked loop", leave_loop),
    "closed loop": ("closed loop", leave_loop),
}


@contextmanager
def monitor(masters: Sequence[LocalMaster]) -> Iterator[None]:
    """Subscribe to every channel by a pattern, so that each PUBLISH counts a listener."""
    with ExitStack() as stack:
        for master in masters:
            listening: Any = stack.enter_context(master.client().pubsub())  # type: ignore[no-untyped-call]
            listening.psubscribe("*")
            assert listening.get_message(timeout=60)
        yield


@pytest.mark.slow
@pytest.mark.fault(without=("a stopped process has a turn for each of its waiters",))
@threads_by_day
@pytest.mark.parametrize("monitored", [False, True], ids=["", "monitored"])
@pytest.mark.parametrize("way", WAYS)
def test_the_next_waiter_has_the_lock_soon(
    way: str, monitored: bool, name: str, masters: list[LocalMaster]
) -> None:
    how, leave = WAYS[way]
    urls = [master.url for master in masters]
    took: list[float] = []
    with (
        joined("threads", masters, max_ttl=60.0) as ours,
        joined(name, masters, max_ttl=60.0) as theirs,
        ExitStack() as stack,
    ):
        if monitored:
            stack.enter_context(monitor(masters))
        while not took or (min(took) > SOON and len(took) < 3):
            lease = ours.acquire("order:1", ttl=TTL, wait=TTL)
            with started(CHILD, how, *urls) as child, ThreadPoolExecutor(1) as pool:
                wait_queued(masters, "order:1", 1)
                taker = pool.submit(theirs.acquire, "order:1", ttl=TTL, wait=60.0)
                wait_queued(masters, "order:1", 2)
                theirs.settle()
                leave(child)
                freed = time.monotonic()
                ours.release(lease)
                won = taker.result(60)
                took.append(time.monotonic() - freed)
                theirs.release(won)
            for either in (ours, theirs):
                either.settle()
        assert min(took) < SOON, took
        assert not locked(masters)
