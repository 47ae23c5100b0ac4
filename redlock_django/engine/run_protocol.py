"""Run a protocol: a generator that yields steps and is sent the answer to each.

A protocol is written once and run by any driver, sync or async. `drive` and `adrive` are the
loop that every driver needs; a driver adds only how it performs one step.

An error of a step, and an interrupt (Ctrl-C, a cancellation) that strikes while a step is
performed, is thrown into the protocol, which undoes what it began and raises the error again.
The steps that it yields meanwhile are performed as well.

Both loops clear `failure` when they end: an error refers to the frames that it passed. Otherwise
the error and this frame would keep each other alive, with all that those frames refer to, until the
cyclic garbage collector runs.

The shape of these loops is explained in docs/contributing/interrupts.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

Work = TypeVar("Work")
Answer = TypeVar("Answer")
Result = TypeVar("Result")


def is_finished(protocol: Generator[Any, Any, Any]) -> bool:
    """Return whether a protocol has returned or raised, so that nothing may be thrown into it."""
    return protocol.gi_frame is None  # type: ignore[attr-defined]


def drive(protocol: Generator[Work, Answer, Result], perform: Callable[[Work], Answer]) -> Result:
    """Run a protocol to its end and return its result; `perform` performs a step.

    Raises whatever the protocol raises.
    """
    failure: BaseException | None = None
    while True:
        try:
            step = next(protocol) if failure is None else protocol.throw(failure)
            # This loop is inside the try because Python handles signals where a loop repeats:
            # outside, a KeyboardInterrupt raised there would not reach the protocol.
            while True:
                step = protocol.send(perform(step))
        except StopIteration as done:
            # Nothing is called before the return: Python handles signals in calls, and an interrupt
            # there would lose the result, which may be a lease.
            if protocol.gi_frame is None:  # type: ignore[attr-defined]
                failure = None
                result: Result = done.value
                return result
            failure = done  # raised by the step, not by the end of the protocol
        except BaseException as error:
            if is_finished(protocol):
                failure = None
                raise
            failure = error


async def adrive(
    protocol: Generator[Work, Answer, Result], perform: Callable[[Work], Awaitable[Answer]]
) -> Result:
    """Run a protocol as `drive` does, in a coroutine."""
    failure: BaseException | None = None
    while True:
        try:
            step = next(protocol) if failure is None else protocol.throw(failure)
            while True:
                step = protocol.send(await perform(step))
        except StopIteration as done:
            if protocol.gi_frame is None:  # type: ignore[attr-defined]
                failure = None
                result: Result = done.value
                return result
            failure = done  # raised by the step, not by the end of the protocol
        except BaseException as error:
            if is_finished(protocol):
                failure = None
                raise
            failure = error
