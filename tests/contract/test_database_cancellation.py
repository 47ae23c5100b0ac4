"""Tasks that are cancelled at the very moment at which what they wait for arrives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from redlock_django.backends.database_attempt import Access, Queue
from redlock_django.backends.database_connections import Connections, Job


def resting() -> tuple[Coroutine[Any, Any, None], Callable[[], object]]:
    """Return a waiter that rests, and what wakes it."""
    connections = cast("Connections", None)
    access = Access(connections=connections, clock=time.monotonic, turn=1.0, listener=None)
    queue = Queue(access, ("order:1",))
    return queue.arest(10), queue._wake


def working() -> tuple[Coroutine[Any, Any, None], Callable[[], object]]:
    """Return a wait for a job, and what ends the job."""

    class Started(Connections):
        def submit(self, job: Job[Any]) -> None:
            """Do nothing: the test ends the job."""

    def connect() -> Any:
        raise AssertionError("no connection is needed")

    job: Job[None] = Job(lambda cursor: None)
    connections = Started(connect, name="x", most=1, timeout=10, forgotten=1)
    return connections.arun(job), lambda: job.finished()


@pytest.mark.parametrize("wait", [resting, working])
@pytest.mark.parametrize("passes", range(6))
async def test_no_cancellation_is_lost(
    wait: Callable[[], tuple[Coroutine[Any, Any, None], Callable[[], object]]], passes: int
) -> None:
    waiting, arrive = wait()
    task = asyncio.create_task(waiting)
    for _ in range(3):
        await asyncio.sleep(0)
    arrive()
    for _ in range(passes):
        await asyncio.sleep(0)
    if task.cancel():  # else it had ended before
        with pytest.raises(asyncio.CancelledError):
            await task
