"""Redlock over N independent masters: what the memory store shares, and the store on servers."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from inspect import GEN_CREATED, getgeneratorstate

from redlock_django.backends.base import BaseBackend, Notice, ignore
from redlock_django.backends.redis.inspection import MasterInspection
from redlock_django.backends.redis.settings import RedlockSettings
from redlock_django.engine import rounds
from redlock_django.engine.attempt import Client
from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol.slots import name_and_slot
from redlock_django.engine.steps import Protocol
from redlock_django.engine.validity import Lease, LeaseState, RedlockLease
from redlock_django.wire.clock import clock, wall_ns
from redlock_django.wire.drivers.loop import LoopDriver
from redlock_django.wire.drivers.reentrancy import Interrupting
from redlock_django.wire.drivers.threads import ThreadDriver
from redlock_django.wire.links.links import Links
from redlock_django.wire.links.waiters import Waiter
from redlock_django.wire.servers.survey import Survey

INSPECTION_TIMEOUT = 0.5  # seconds to wait for each answer of a master in an inspection


class RedlockBackend(BaseBackend):
    """A store whose servers are N independent masters, of which a majority decides."""

    settings_class = RedlockSettings
    keeps_min_hold = True
    has_permits = True
    hands_on = True
    servers_are_masters = True

    settings: RedlockSettings

    def __init__(self, alias: str, settings: RedlockSettings, notice: Notice = ignore) -> None:
        super().__init__(alias, settings, notice)
        self.deployment = settings.deployment
        self.addresses = settings.addresses
        # Its rounds propose the wall clock in µs as fencing tokens.
        self._client = Client(
            self.deployment,
            TOKENS,
            iter(self.wall_us, None),
            retry_delay,
            overrun=2 * settings.master_timeout,
        )

    def merged(self, held: Lease, extended: Lease) -> Lease:
        if isinstance(held, RedlockLease) and isinstance(extended, RedlockLease):
            return rounds.merged(held, extended)
        return super().merged(held, extended)

    def survey(self) -> Survey:
        """Return a new survey of the masters, which the caller closes."""
        raise NotImplementedError

    def inspect(self) -> MasterInspection:
        return MasterInspection(self.alias, self.survey(), self.settings)

    def wall_us(self) -> int:
        """Return the wall clock of this process in µs."""
        return wall_ns() // 1000

    def _acquire(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        waiter: Waiter | None = None,
        home: object = None,
        limit: int = 1,
        expected: Lease | None = None,
    ) -> Protocol[RedlockLease]:
        """Return the rounds that acquire a lease, beginning now."""
        return rounds.acquire(
            self._client, resources, ttl, holder,
            now=self.clock(), wait=wait, waiter=waiter, home=home, limit=limit,
            expected=expected,
        )  # fmt: skip

    def _extend(self, lease: Lease, ttl: float) -> Protocol[tuple[LeaseState, RedlockLease]]:
        """Return the round that extends a lease of this store."""
        assert isinstance(lease, RedlockLease)
        return rounds.extend(self.deployment, lease, ttl, now=self.clock())

    def _release(
        self, lease: Lease, *, awaited: bool = True, bury: bool = False
    ) -> Protocol[bool | None]:
        """Return the round that releases a lease of this store."""
        assert isinstance(lease, RedlockLease)
        if lease.limit > 1 and not lease.earliest_end:
            self._client.released.add(*name_and_slot(lease.resources[0]))
        return rounds.release(
            self.deployment,
            lease,
            awaited=awaited,
            bury=bury,
            held_for=lease.earliest_end and lease.held_for(self.clock),
        )


class RedisBackend(RedlockBackend):
    """One driver and its links for the threads of the process, and one for each running loop."""

    def __init__(self, alias: str, settings: RedlockSettings, notice: Notice = ignore) -> None:
        super().__init__(alias, settings, notice)
        self.membership = Membership(self.deployment)
        self._threads: ThreadDriver | None = None
        self._closed = False
        self._making = threading.RLock()  # a signal handler may interrupt its own thread
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopDriver] = (
            weakref.WeakKeyDictionary()
        )

    def acquire(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        limit: int = 1,
        expected: Lease | None = None,
    ) -> RedlockLease:
        driver = self.thread_driver()
        waiter = driver.waiter() if wait > 0 else None
        protocol = self._acquire(resources, ttl, wait, holder, waiter, driver, limit, expected)
        return driver.run(protocol, waiter=waiter)

    async def aacquire(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        limit: int = 1,
        expected: Lease | None = None,
    ) -> RedlockLease:
        driver = self.loop_driver()
        waiter = driver.waiter() if wait > 0 else None
        protocol = self._acquire(resources, ttl, wait, holder, waiter, driver, limit, expected)
        return await driver.run(protocol, waiter=waiter)

    # A renewal does not wait for a connection: the next one follows soon, and the renewals of
    # other leases must not be held up.

    def extend(self, lease: Lease, ttl: float) -> tuple[LeaseState, RedlockLease]:
        return self.thread_driver().run(self._extend(lease, ttl), wait_for_links=False)

    def extend_all(
        self, asked: Sequence[tuple[Lease, float]]
    ) -> list[tuple[LeaseState, Lease] | Exception]:
        extensions = [self._extend(lease, ttl) for lease, ttl in asked]
        return [*self.thread_driver().run_all(extensions)]

    async def aextend(self, lease: Lease, ttl: float) -> tuple[LeaseState, RedlockLease]:
        return await self.loop_driver().run(self._extend(lease, ttl), wait_for_links=False)

    # A release is sent after its acquire, on the same links. A caller that cannot use those
    # links, such as another loop, posts it to them.

    def release(self, lease: Lease) -> bool | None:
        driver = self._threads
        if driver is not None and driver is lease.home and not driver.sockets.closed.is_set():
            protocol = self._release(lease)
            try:
                return driver.run(protocol, wait_for_links=False)
            except Interrupting:
                if getgeneratorstate(protocol) != GEN_CREATED:
                    raise  # that of a signal handler, which has interrupted this release
        self.post_release(lease)
        return None

    async def arelease(self, lease: Lease) -> bool | None:
        if lease.home is self._loops.get(asyncio.get_running_loop()):
            return await self.loop_driver().run(self._release(lease), wait_for_links=False)
        self.post_release(lease)
        return None

    def post_release(self, lease: Lease) -> None:
        home = lease.home
        if isinstance(home, LoopDriver) and home.post(self._release(lease, awaited=False)):
            return
        # Links other than these are gone, and the acquire that they sent may still arrive.
        driver = self.thread_driver()
        driver.post(self._release(lease, awaited=False, bury=driver is not home))

    def connect(self) -> None:
        self.thread_driver().start()

    async def aconnect(self) -> None:
        self.connect()  # over these links, a thread renews the locks of tasks
        await self.loop_driver().start()

    def survey(self) -> Survey:
        timeout = min(INSPECTION_TIMEOUT, self.settings.connect_timeout)
        return Survey(self.addresses, self.deployment, timeout)

    def voided(self, lease: Lease) -> bool:
        # The links of a loop that has ended notice nothing, and the thread's renew the lock.
        home, ours = lease.home, self._threads
        if ours is not None and lease.started <= ours.links.steps.voided:
            return True
        if home is ours or not isinstance(home, ThreadDriver | LoopDriver):
            return False
        return lease.started <= home.links.steps.voided

    # Drivers.

    def thread_driver(self) -> ThreadDriver:
        """Return the driver that the threads of this process share."""
        if self._threads is None:
            with self._making:
                if self._threads is None:
                    driver = self._threads = ThreadDriver(self._links(), self.notice)
                    if self._closed:  # by another thread, since the caller has this backend
                        driver.close()
        return self._threads

    def loop_driver(self) -> LoopDriver:
        """Return the driver of the running loop."""
        loop = asyncio.get_running_loop()
        driver = self._loops.get(loop)
        if driver is None or driver.sockets.closed.is_set():
            with self._making:
                self._forget_closed_loops()
                driver = self._loops[loop] = LoopDriver(self._links(), self.notice)
        return driver

    def _forget_closed_loops(self) -> None:
        """Close the links of closed loops, which tasks that were still waiting keep alive."""
        # A copy made in one step: other threads may remove their loops at the same time.
        for loop in [reference() for reference in self._loops.keyrefs()]:
            if loop is not None and loop.is_closed() and (driver := self._loops.pop(loop, None)):
                driver.abandon()

    def _links(self) -> Links:
        return Links(
            self.addresses,
            self.deployment,
            self.membership,
            clock,
            master_timeout=self.settings.master_timeout,
            connect_timeout=self.settings.connect_timeout,
            tolerate=self.settings.tolerate,
        )

    def forked(self) -> None:
        inherited: list[ThreadDriver | LoopDriver] = [*self._loops.values()]
        if self._threads is not None:
            inherited.append(self._threads)
        self._making = threading.RLock()
        self._threads = None
        self._loops = weakref.WeakKeyDictionary()
        for driver in inherited:
            driver.forked()

    def close(self) -> None:
        # The driver is kept: a lock that outlives its backend fails and does not reconnect.
        with self._making:
            self._closed, driver = True, self._threads
        if driver is not None:
            driver.close()

    async def aclose(self) -> None:
        driver = self._loops.pop(asyncio.get_running_loop(), None)
        if driver is not None:
            await driver.aclose()


def random_source() -> Callable[[int], bytes]:
    """Return the function that draws random bytes from the kernel.

    `os.urandom` lets go of the interpreter for 0.3 µs, and so wakes a thread that waits for it. But
    not every platform has `os.getrandom`, and a sandbox may forbid its system call.
    """
    try:
        os.getrandom(16)
    except (AttributeError, OSError):
        return os.urandom
    return os.getrandom


TOKENS = map(bytes.hex, iter(partial(random_source(), 16), b""))
"""New 128-bit tokens as 32 hex digits. A fork would repeat the numbers of `random`."""


def retry_delay(attempts: int, uniform: Callable[[float, float], float] = random.uniform) -> float:
    """Return the seconds to pause after so many attempts: random, growing, at most 0.1 s."""
    longest = min(0.1, 0.001 * 2.0 ** min(attempts, 9))
    return uniform(longest / 4, longest)
