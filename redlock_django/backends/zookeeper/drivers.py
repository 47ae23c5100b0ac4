"""Perform the steps of a protocol with ZooKeeper, in the thread of the caller or on its loop.

A caller never touches kazoo's results: they have mutexes in Python, which an interrupt would leave
locked. docs/explanation/interrupts.md explains this.
"""

from __future__ import annotations

import asyncio
import queue
from contextlib import suppress
from functools import partial

from redlock_django.backends.zookeeper.requests import ZooKeeperStep
from redlock_django.backends.zookeeper.session import Session


def start(session: Session, step: ZooKeeperStep) -> queue.SimpleQueue[None]:
    """Begin a step; return what `finish` needs to wait for it."""
    ended: queue.SimpleQueue[None] = queue.SimpleQueue()
    step.wake = partial(ended.put, None)
    session.begin(step)
    return ended


def finish(session: Session, step: ZooKeeperStep, ended: queue.SimpleQueue[None]) -> None:
    """Wait for a step; raise StoreUnavailable if it has requests that were not answered in time."""
    with suppress(queue.Empty):
        ended.get(timeout=step.seconds)
        return
    session.too_late(step)


def perform(session: Session, step: ZooKeeperStep) -> None:
    """Perform a step in the thread of the caller."""
    finish(session, step, start(session, step))


async def aperform(session: Session, step: ZooKeeperStep) -> None:
    """Perform a step on the running loop."""
    ended = asyncio.Event()
    step.wake = partial(_set_in_loop, asyncio.get_running_loop(), ended)
    session.begin(step)
    with suppress(TimeoutError):
        # Not wait_for(): on Python 3.11 it loses a cancellation that comes with the result.
        async with asyncio.timeout(step.seconds):
            await ended.wait()
            return
    session.too_late(step)


def _set_in_loop(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop has been closed
        loop.call_soon_threadsafe(event.set)
