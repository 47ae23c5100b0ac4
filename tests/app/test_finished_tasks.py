"""Work that is finished although its caller is cancelled: what it costs, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from redlock_django.locking.event_loops import finish_despite_cancellation


async def _ignore(task: asyncio.Task[str]) -> None:
    pass


async def _turns_of(function: Callable[[], Awaitable[object]]) -> int:
    """Return how many turns of the loop pass while a function is awaited."""
    loop, turns, over = asyncio.get_running_loop(), 0, False

    def turn() -> None:
        nonlocal turns
        if not over:
            turns += 1
            loop.call_soon(turn)

    loop.call_soon(turn)
    await function()
    over = True
    return turns


async def test_the_caller_runs_in_the_turn_after_the_end_of_the_work() -> None:
    async def work() -> str:
        return "done"

    async def request() -> None:
        assert await finish_despite_cancellation(work(), lambda: True, _ignore) == "done"

    assert await _turns_of(request) == 2  # one begins the task, the next one is the caller's


async def test_a_caller_that_is_cancelled_repeatedly_waits_for_the_work() -> None:
    entered, opened, discarded = asyncio.Event(), asyncio.Event(), []

    async def work() -> str:
        entered.set()
        await opened.wait()
        return "done"

    async def discard(task: asyncio.Task[str]) -> None:
        discarded.append(task.result())

    caller = asyncio.create_task(finish_despite_cancellation(work(), entered.is_set, discard))
    await entered.wait()
    for _ in range(3):
        caller.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not caller.done()
    opened.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert discarded == ["done"]


async def test_a_task_that_is_cancelled_before_it_begins_cancels_its_caller() -> None:
    async def work() -> None:
        raise AssertionError("never")

    caller = asyncio.create_task(finish_despite_cancellation(work(), lambda: False, _ignore))
    others = asyncio.all_tasks()
    await asyncio.sleep(0)
    [task] = asyncio.all_tasks() - others
    task.cancel()  # as code of a site does that cancels the tasks it does not know
    await asyncio.wait((caller,), timeout=30)
    assert caller.cancelled()
