"""The store in memory: the whole protocol over masters in this process, for tests."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from redlock_django.backends.base import Notice, ignore
from redlock_django.backends.memory.interpreter import interpreter
from redlock_django.backends.memory.master import MemoryMaster
from redlock_django.backends.redis.backend import RedlockBackend
from redlock_django.backends.redis.settings import RedlockSettings
from redlock_django.engine.inspection.health import Health
from redlock_django.engine.protocol.query import SendQuery
from redlock_django.engine.protocol.trust_marker import Join
from redlock_django.engine.protocol.votes import NOT_ASKED, failed
from redlock_django.engine.run_protocol import adrive, drive
from redlock_django.engine.steps import Pause, Protocol, Result, Round, Step
from redlock_django.engine.validity import Lease, LeaseState
from redlock_django.wire.clock import clock, wall_ns
from redlock_django.wire.links.waiters import Waiter, Waiters
from redlock_django.wire.servers.survey import Answer, Survey
from redlock_django.wire.wakeup import LoopWakeup, Wakeup


class MemorySettings(RedlockSettings):
    """The settings of masters in memory: without MASTERS there is one, trusted at once."""

    default_names = ("memory",)


def _sleep(seconds: float) -> None:
    time.sleep(seconds)  # gevent may replace it after the import


class MemoryBackend(RedlockBackend):
    """Redlock over masters in this process: for tests, never for production.

    It runs the whole protocol and the Lua scripts of real masters, not one dict of locks: so tests
    of a site can make masters hang, restart, forget their data and step their clocks (see
    docs/how-to/testing.md), and the simulator of this project checks the same scripts.

    `advance()` advances the time. To control it completely, replace `now`, the clock of the
    backend, `time` (µs), the clock of its masters, and `sleep`. Methods take the index of a
    master, 0 for the first; `down[index]` is why it does not answer, "" if it answers.
    """

    settings_class = MemorySettings
    is_shared = False

    passed: ClassVar[float] = 0.0  # seconds: time passes for all backends at once

    def __init__(self, alias: str, settings: RedlockSettings, notice: Notice = ignore) -> None:
        interpreter()  # raises if it is not installed
        super().__init__(alias, settings, notice)
        self.now: Callable[[], float] = lambda: clock() + self.passed
        self.time: Callable[[], int] = lambda: wall_ns() // 1000 + round(self.passed * 1_000_000)
        self.sleep: Callable[[float], None] = _sleep
        self.waiters = Waiters(self.deployment, clock)
        self.masters: list[MemoryMaster] = []
        self.down: list[Any] = []  # a reason, or just True
        # The marker that is expected of each, and the time (µs) from which it is trusted.
        self._markers: list[tuple[bytes, int]] = []
        self.clear()

    def clear(self) -> None:
        """Forget every lock and bring every master up, for the start of a test."""
        many = self.deployment.masters
        self.masters[:] = [MemoryMaster(lambda: self.time()) for _ in range(many)]
        self.down[:] = [""] * many
        self._markers[:] = [(b"trusted", 0)] * many
        for index, master in enumerate(self.masters):
            master.keyspace.set(self.deployment.marker, b"trusted")
            master.keyspace.publish = partial(self._publish, index)
            self.waiters.listen(index)

    def _publish(self, index: int, channel: str, name: bytes) -> bool:
        return channel == self.waiters.channel and self.waiters.call(name, index)

    def share(self, other: MemoryBackend) -> None:
        """Use the masters of another alias, as two aliases with the same MASTERS do."""
        self.masters, self.down, self._markers = other.masters, other.down, other._markers
        self.waiters = other.waiters

    # Time and faults, for tests.

    @staticmethod
    def advance(seconds: float) -> None:
        """Advance the clocks of every backend in memory; no lease is renewed in that time."""
        MemoryBackend.passed += seconds

    def refuse(self, index: int) -> None:
        """Take a master down: it refuses every connection."""
        self._fail(index, "refused the connection")

    def hang(self, index: int) -> None:
        """Make a master hang: it answers nothing."""
        self._fail(index, f"did not answer within {self.settings.master_timeout:g} s")

    def restore(self, index: int) -> None:
        """Bring a master that was down or hung back, with all its data."""
        self.down[index] = ""
        self.notice(self.deployment.names[index], True, self._doubt(index))

    def restart(self, index: int) -> None:
        """Restart a master without data: it answers, and is not counted for RESTART_DELAY."""
        self.masters[index].run_id = secrets.token_hex(20)
        self.forget(index)
        self.restore(index)

    def forget(self, index: int) -> None:
        """Empty a master, as FLUSHALL does: it is not counted for RESTART_DELAY."""
        master = self.masters[index]
        master.keyspace.clear()
        query = Join(deployment=self.deployment, run_id=master.run_id, mode="mark")
        marker = master.ask(query).rest
        self._markers[index] = (marker, int(marker.split()[1]))

    def step_clock(self, index: int, seconds: float) -> None:
        """Set the clock of one master forward or back; beyond MAX_CLOCK_SKEW it is not counted."""
        before = self.masters[index].keyspace.time
        self.masters[index].keyspace.time = lambda: before() + round(seconds * 1_000_000)

    def _fail(self, index: int, reason: str) -> None:
        self.down[index] = reason
        self.notice(self.deployment.names[index], False, reason)

    def _ready_in(self, index: int) -> float:
        return max(0.0, (self._markers[index][1] - self.masters[index].keyspace.time()) / 1_000_000)

    def _doubt(self, index: int) -> str:
        left = self._ready_in(index)
        return f"new or emptied: trusted in {max(left, 1):.0f} s" if left else ""

    def clock(self) -> float:
        return self.now()

    def wall_us(self) -> int:
        # The clock of the masters. If `advance` moved only theirs, a new waiter would come before
        # those that already wait.
        return self.time()

    def forked(self) -> None:
        for master in self.masters:
            master.forked()

    def acquire(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        limit: int = 1,
        expected: Lease | None = None,
    ) -> Lease:
        waiter = self.waiters.new() if wait > 0 else None
        protocol = self._acquire(resources, ttl, wait, holder, waiter, self, limit, expected)
        return self._run(protocol, waiter)

    async def aacquire(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        limit: int = 1,
        expected: Lease | None = None,
    ) -> Lease:
        waiter = self.waiters.new() if wait > 0 else None
        protocol = self._acquire(resources, ttl, wait, holder, waiter, self, limit, expected)
        return await self._arun(protocol, waiter)

    def extend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        return self._run(self._extend(lease, ttl))

    def release(self, lease: Lease) -> bool | None:
        return self._run(self._release(lease))

    def post_release(self, lease: Lease) -> None:
        self.release(lease)

    def survey(self) -> MemorySurvey:
        return MemorySurvey(self)

    def _run(self, protocol: Protocol[Result], waiter: Waiter | None = None) -> Result:
        def perform(step: Step) -> float:
            if isinstance(step, Round):
                self._answer(step, waiter)
            elif waiter is None or self.sleep is not _sleep:
                self.sleep(step.seconds)
            else:
                self._nap(waiter, step)
            return self.clock()

        return drive(protocol, perform)

    async def _arun(self, protocol: Protocol[Result], waiter: Waiter | None = None) -> Result:
        async def perform(step: Step) -> float:
            if isinstance(step, Round):
                self._answer(step, waiter)
            elif waiter is None:
                await asyncio.sleep(step.seconds)
            else:
                await self._anap(waiter, step)
            return self.clock()

        return await adrive(protocol, perform)

    def _nap(self, waiter: Waiter, pause: Pause) -> None:
        wakeup = Wakeup()
        waiter.wake = wakeup.wake
        waiter.rest(pause)
        while not waiter.decided and (left := waiter.until - clock()) > 0:
            wakeup.wait(left)

    async def _anap(self, waiter: Waiter, pause: Pause) -> None:
        wakeup = LoopWakeup()
        waiter.wake = wakeup.wake
        waiter.rest(pause)
        while not waiter.decided and (left := waiter.until - clock()) > 0:
            await wakeup.wait(left)

    def _answer(self, asked: Round, waiter: Waiter | None = None) -> None:
        if waiter is not None and asked.awaited:
            waiter.ask()
        for index, command in enumerate(asked.commands):
            if command is None:
                vote = NOT_ASKED
            elif down := self.down[index]:
                vote = failed(reason(down), sent=False)
            elif command.trusted and (doubt := self._doubt(index)):
                vote = failed(doubt, sent=False)
            else:
                reply = self.masters[index].say(command, 0, *self._markers[index])
                vote = command.vote(*reply[1:])
            asked.tally.cast(index, vote)


class MemorySurvey(Survey):
    """Asks the masters of a MemoryBackend; those that are down stay silent."""

    def __init__(self, backend: MemoryBackend) -> None:
        super().__init__((), backend.deployment, 0.0)
        self._backend = backend

    def ask(
        self, work: Callable[[SendQuery], Answer], within: float | None = None
    ) -> dict[int, Answer]:
        return {index: work(master.ask) for index, master in self._up().items()}

    def health(self) -> dict[int, Health]:
        return {index: self._health(index, master) for index, master in self._up().items()}

    def _health(self, index: int, master: MemoryMaster) -> Health:
        keyspace = master.keyspace
        return Health(
            run_id=master.run_id,
            offset=keyspace.time() / 1e6 - wall_ns() / 1e9 - self._backend.passed,
            server="memory",
            policy="noeviction",
            held=len(keyspace.still_held(self.deployment.held, keyspace.time() // 1000)),
            ready_in=self._backend._ready_in(index),
            deployment=self.deployment.fingerprint,
        )

    def _up(self) -> dict[int, MemoryMaster]:
        for index, down in enumerate(self._backend.down):
            if down:
                self.silent[index] = reason(down)
        masters = enumerate(self._backend.masters)
        return {index: master for index, master in masters if index not in self.silent}


def reason(down: object) -> str:
    """Return why a master is down: the reason it was given, which may be just True."""
    return down if isinstance(down, str) else "down"
