"""`drive` and `adrive`: what a step returns and raises reaches the protocol, and its end ours."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Generator
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from redlock_django.engine.run_protocol import adrive, drive, is_finished

Protocol = Generator[str, int, Any]
Run = Callable[[Protocol, Callable[[str], int]], Any]


def _adrive(protocol: Protocol, perform: Callable[[str], int]) -> Any:
    async def aperform(step: str) -> int:
        await asyncio.sleep(0)
        return perform(step)

    return asyncio.run(adrive(protocol, aperform))


@pytest.fixture(params=[drive, _adrive], ids=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    chosen: Run = request.param
    return chosen


def _raise(error: BaseException) -> Callable[[str], int]:
    def perform(step: str) -> int:
        if step == "undo":
            return 0
        raise error

    return perform


def _handling(error: type[Exception]) -> Protocol:
    try:
        yield "do"
    except error:
        return "handled"


def test_each_step_is_answered_and_the_result_returned(run: Run) -> None:
    def protocol() -> Protocol:
        return [(yield "a"), (yield "bb")]

    assert run(protocol(), len) == [1, 2]


def test_a_protocol_without_a_step(run: Run) -> None:
    def protocol(steps: list[str]) -> Protocol:
        yield from steps
        return "result"

    assert run(protocol([]), len) == "result"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, asyncio.CancelledError])
def test_an_error_of_a_step_is_undone_and_raised(run: Run, error: type[BaseException]) -> None:
    undone = []

    def protocol() -> Protocol:
        try:
            yield "do"
        except BaseException:
            undone.append((yield "undo"))
            raise

    driven = protocol()
    with pytest.raises(error):
        run(driven, _raise(error()))
    assert undone == [0]
    assert is_finished(driven)


def test_an_error_that_the_protocol_handles(run: Run) -> None:
    assert run(_handling(OSError), _raise(OSError())) == "handled"


def test_a_step_that_raises_stop_iteration_does_not_end_the_protocol() -> None:
    perform: Any = _raise(StopIteration("not the result"))
    assert drive(_handling(StopIteration), perform) == "handled"
    # Raised while the awaitable is made.
    assert asyncio.run(adrive(_handling(StopIteration), perform)) == "handled"


def test_an_error_of_the_protocol_is_raised(run: Run) -> None:
    def protocol() -> Protocol:
        yield "do"
        raise LookupError("its own")

    with pytest.raises(LookupError, match="its own"):
        run(protocol(), len)


class _Local:
    """An object that only a frame of a step refers to."""


def _drive_in_coroutine(protocol: Protocol, perform: Callable[[str], int]) -> Any:
    async def aperform(step: str) -> int:
        return perform(step)

    try:
        adrive(protocol, aperform).send(None)
    except StopIteration as done:
        return done.value


@pytest.mark.parametrize("is_handled", [False, True], ids=["raised", "handled"])
@pytest.mark.parametrize("run", [drive, _drive_in_coroutine], ids=["sync", "async"])
def test_an_error_does_not_keep_the_frames_that_it_passed(run: Run, is_handled: bool) -> None:
    locals_of_steps: list[weakref.ref[_Local]] = []

    def protocol() -> Protocol:
        try:
            yield "do"
        except OSError:
            if not is_handled:
                raise

    def perform(step: str) -> int:
        local = _Local()
        locals_of_steps.append(weakref.ref(local))
        raise OSError(step)

    gc.disable()
    try:
        with nullcontext() if is_handled else suppress(OSError):
            run(protocol(), perform)
        assert locals_of_steps[0]() is None
    finally:
        gc.enable()


def test_is_finished() -> None:
    def protocol() -> Protocol:
        yield "do"

    driven = protocol()
    assert not is_finished(driven)
    next(driven)
    assert not is_finished(driven)
    driven.close()
    assert is_finished(driven)
