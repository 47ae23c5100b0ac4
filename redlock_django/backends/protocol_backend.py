"""The methods of stores whose servers are asked step by step, sync and async.

Such a store writes an acquisition once, as a protocol that yields steps, and an extension or a
release as one step. A runner performs steps for threads and tasks, each of which waits for a step
no longer than that allows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from redlock_django.backends.base import BaseBackend
from redlock_django.engine.run_protocol import adrive, drive
from redlock_django.engine.validity import Lease, LeaseState, valid_until
from redlock_django.exceptions import StoreUnavailable
from redlock_django.wire.wakeup import LoopWakeup, Wakeup

Result = TypeVar("Result")
StoreProtocol = Generator["StoreStep", None, Result]


def wake_nobody() -> None:
    """Do nothing: the `wake` of a step for which no caller waits."""


class StoreStep:
    """Something to wait for, for at most `seconds`; `end` ends the wait, from any thread."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.ended = False
        self.wake: Callable[[], object] = wake_nobody

    def end(self) -> None:
        """End the step, and wake the caller that waits for it."""
        self.ended = True
        self.wake()


class StepRunner(ABC):
    """Performs the steps of a store in its own threads. A step that is only waited for is a pause.

    Callers touch nothing of a driver, which may have mutexes in Python: an interrupt would leave
    these locked (docs/contributing/interrupts.md).
    """

    @abstractmethod
    def begin_work(self, step: Any) -> None:
        """Begin a step that is not a pause, and end it once it is done.

        From now on, `seconds` limits how long its caller waits.

        Raises StoreUnavailable.
        """

    @abstractmethod
    def too_late(self, step: Any) -> StoreUnavailable:
        """Note that the caller of a step has given it up; return the error."""

    @abstractmethod
    def is_inside(self) -> bool:
        """Return whether the calling thread performs a step itself, so that it cannot wait."""

    def begin(self, step: StoreStep) -> None:
        """Begin a step; its `wake` is called when it has ended."""
        if type(step) is not StoreStep:
            self.begin_work(step)
        elif step.ended:  # before its caller began to wait
            step.wake()

    def start(self, step: StoreStep) -> Wakeup:
        """Begin a step; return what `finish` needs to wait for it."""
        ended = Wakeup()
        step.wake = ended.wake
        self.begin(step)
        return ended

    def finish(self, step: StoreStep, ended: Wakeup) -> None:
        """Wait for a step; raise StoreUnavailable if its work was not done in time."""
        if not ended.wait(step.seconds) and type(step) is not StoreStep:
            raise self.too_late(step)

    def perform(self, step: StoreStep) -> None:
        """Perform a step in the thread of the caller."""
        self.finish(step, self.start(step))

    async def aperform(self, step: StoreStep) -> None:
        """Perform a step on the running loop."""
        ended = LoopWakeup()
        step.wake = ended.wake
        self.begin(step)
        if not await ended.wait(step.seconds) and type(step) is not StoreStep:
            raise self.too_late(step)


class Acquisition(NamedTuple):
    """The locks that an acquisition wants (see `BaseBackend.acquire`), and since when."""

    resources: tuple[str, ...]
    ttl: float
    wait: float
    holder: str
    limit: int
    expected: Lease | None
    asked: float

    @property
    def deadline(self) -> float:
        """The moment until which it waits."""
        return self.asked + self.wait


class Extension(NamedTuple):
    """The extension of a lease by `step`, None if the lease is lost.

    `state` returns the result once the step has ended, or too much time has passed. It may raise
    StoreUnavailable.
    """

    lease: Lease
    ttl: float
    started: float
    step: StoreStep | None
    state: Callable[[], LeaseState]

    def result(self) -> tuple[LeaseState, Lease]:
        """Return what `BaseBackend.extend` returns."""
        state, lease = LeaseState.UNKNOWN, self.lease
        with suppress(StoreUnavailable):
            state = self.state()
        if state is LeaseState.RENEWED:
            until = max(lease.until, valid_until(self.ttl, self.started))
            lease = replace(lease, ttl=self.ttl, started=self.started, until=until)
        return state, lease


class ProtocolBackend(BaseBackend):
    """A store whose `runner` performs the steps of its methods."""

    @property
    def runner(self) -> StepRunner:
        """The runner of the steps: another one in a forked child."""
        raise NotImplementedError

    def acquisition(self, wanted: Acquisition) -> StoreProtocol[Lease]:
        """Yield the steps of `acquire`, and return the lease."""
        raise NotImplementedError

    def extension(self, lease: Lease, ttl: float) -> Extension:
        """Return the extension of a lease to `ttl` seconds from now."""
        raise NotImplementedError

    def release_step(self, lease: Lease) -> StoreStep | None:
        """Return the step that releases a lease, None if it is lost."""
        raise NotImplementedError

    def has_freed(self, step: Any) -> bool | None:
        """Return what `release` returns, of a step that has ended or has taken too long."""
        raise NotImplementedError

    def acquire(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        limit: int = 1,
        expected: Lease | None = None,
    ) -> Lease:
        wanted = Acquisition(resources, ttl, wait, holder, limit, expected, self.clock())
        return drive(self.acquisition(wanted), self.runner.perform)

    async def aacquire(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        limit: int = 1,
        expected: Lease | None = None,
    ) -> Lease:
        wanted = Acquisition(resources, ttl, wait, holder, limit, expected, self.clock())
        return await adrive(self.acquisition(wanted), self.runner.aperform)

    def extend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        return self.extend_all([(lease, ttl)])[0]  # type: ignore[return-value]

    async def aextend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        extension = self.extension(lease, ttl)
        if extension.step is not None:
            with suppress(StoreUnavailable):
                await self.runner.aperform(extension.step)
        return extension.result()

    def extend_all(
        self, asked: Sequence[tuple[Lease, float]]
    ) -> list[tuple[LeaseState, Lease] | Exception]:
        """Extend all leases at the same time."""
        runner, started = self.runner, list[tuple[StoreStep, Wakeup]]()
        extensions = [self.extension(lease, ttl) for lease, ttl in asked]
        for step in [extension.step for extension in extensions if extension.step is not None]:
            with suppress(StoreUnavailable):
                started.append((step, runner.start(step)))
        longest = math.inf
        for step, ended in started:
            step.seconds = min(step.seconds, longest)
            try:
                runner.finish(step, ended)
            except StoreUnavailable:
                longest = 0.0  # the others began at the same time
        return [extension.result() for extension in extensions]

    def release(self, lease: Lease) -> bool | None:
        if self.runner.is_inside():  # a finalizer that runs there
            self.post_release(lease)
            return None
        if (step := self.release_step(lease)) is None:
            return False
        with suppress(StoreUnavailable):
            self.runner.perform(step)
        return self._freed_or_posted(lease, step)

    async def arelease(self, lease: Lease) -> bool | None:
        if (step := self.release_step(lease)) is None:
            return False
        with suppress(StoreUnavailable):
            await self.runner.aperform(step)
        return self._freed_or_posted(lease, step)

    def _freed_or_posted(self, lease: Lease, step: StoreStep) -> bool | None:
        freed = self.has_freed(step)
        if freed is None:
            self.post_release(lease)
        return freed
