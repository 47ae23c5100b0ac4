"""Redlock over N independent Redis or Valkey masters."""

from __future__ import annotations

import asyncio
import select
import threading
import weakref
from collections.abc import Callable, Sequence
from inspect import GEN_CREATED, getgeneratorstate
from typing import TypeVar

from redlock_django.backends.base import Notice, ignore
from redlock_django.backends.redlock import RedlockBackend, RedlockSettings
from redlock_django.engine.validity import Lease, LeaseState, RedlockLease
from redlock_django.exceptions import InvalidRedlock
from redlock_django.wire.aio import LoopLinks
from redlock_django.wire.links import Links
from redlock_django.wire.reentry import Interrupting
from redlock_django.wire.survey import Survey
from redlock_django.wire.sync import SyncLinks

AnyLinks = TypeVar("AnyLinks", bound=Links)
INSPECTION_TIMEOUT = 0.5  # seconds to wait for each answer of a master in an inspection


class RedisBackend(RedlockBackend):
    """One set of links for the threads of the process, and one for each running loop."""

    def __init__(self, alias: str, settings: RedlockSettings, notice: Notice = ignore) -> None:
        super().__init__(alias, settings, notice)
        self._sync: SyncLinks | None = None
        self._closed = False
        self._making = threading.RLock()  # a signal handler may interrupt its own thread
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopLinks] = (
            weakref.WeakKeyDictionary()
        )

    def acquire(
        self, resources: tuple[str, ...], ttl: float, wait: float, holder: str
    ) -> RedlockLease:
        links = self.sync_links()
        waiter = links.waiter(resources) if wait > 0 else None
        try:
            protocol = self._acquire(resources, ttl, wait, holder, waiter, links)
            return links.run(protocol, waiter=waiter)
        except BaseException:
            if waiter is not None:
                waiter.leave()
            raise

    async def aacquire(
        self, resources: tuple[str, ...], ttl: float, wait: float, holder: str
    ) -> RedlockLease:
        links = self.loop_links()
        waiter = links.waiter(resources) if wait > 0 else None
        try:
            protocol = self._acquire(resources, ttl, wait, holder, waiter, links)
            return await links.run(protocol, waiter=waiter)
        except BaseException:
            if waiter is not None:
                waiter.leave()
            raise

    # A renewal does not wait for a connection: the next one follows soon, and the renewals of
    # other leases must not be held up.

    def extend(self, lease: Lease, ttl: float) -> tuple[LeaseState, RedlockLease]:
        protocol = self._extend(lease, ttl)
        return self._home_sync(lease).run(protocol, wait_for_links=False)

    def extend_all(
        self, asked: Sequence[tuple[Lease, float]]
    ) -> list[tuple[LeaseState, Lease] | Exception]:
        results: dict[int, tuple[LeaseState, Lease] | Exception] = {}
        homes: dict[SyncLinks, list[int]] = {}
        for index, (lease, _) in enumerate(asked):
            homes.setdefault(self._home_sync(lease), []).append(index)
        for links, indexes in homes.items():
            extended = links.run_all([self._extend(*asked[index]) for index in indexes])
            results.update(zip(indexes, extended, strict=True))
        return [results[index] for index in range(len(asked))]

    async def aextend(self, lease: Lease, ttl: float) -> tuple[LeaseState, RedlockLease]:
        protocol = self._extend(lease, ttl)
        return await self.loop_links().run(protocol, wait_for_links=False)

    # A release is sent after its acquire, on the same links. A caller that cannot use those
    # links, such as another loop, posts it to them.

    def release(self, lease: Lease) -> bool | None:
        home = lease.home
        if isinstance(home, SyncLinks) and not home.closed.is_set():
            protocol = self._release(lease)
            try:
                return home.run(protocol, wait_for_links=False)
            except Interrupting:
                if getgeneratorstate(protocol) != GEN_CREATED:
                    raise  # that of a signal handler, which has interrupted this release
        self.post_release(lease)
        return None

    async def arelease(self, lease: Lease) -> bool | None:
        if lease.home is self._loops.get(asyncio.get_running_loop()):
            return await self.loop_links().run(self._release(lease), wait_for_links=False)
        self.post_release(lease)
        return None

    def post_release(self, lease: Lease) -> None:
        protocol = self._release(lease, awaited=False)
        if isinstance(lease.home, LoopLinks) and lease.home.post(protocol):
            return
        # The links that acquired it are gone, and the acquire that they sent may still arrive.
        bury = self._release(lease, awaited=False, bury=True)
        links = self._home_sync(lease)
        links.post(protocol if links is lease.home else bury)

    def connect(self) -> None:
        self.sync_links().start()

    async def aconnect(self) -> None:
        await self.loop_links().start()

    def survey(self) -> Survey:
        timeout = min(INSPECTION_TIMEOUT, self.settings.connect_timeout)
        return Survey(self.addresses, self.deployment, timeout)

    def voided(self, lease: Lease) -> bool:
        # The links of a loop that has ended notice nothing: see `Lock.detach`.
        home, ours = lease.home, self._sync
        if ours is not None and ours.steps.void(lease):
            return True
        return home is not ours and isinstance(home, Links) and home.steps.void(lease)

    # Links.

    def sync_links(self) -> SyncLinks:
        """Return the links that the threads of this process share."""
        if self._sync is None:
            _check_poll(self.alias)
            with self._making:
                if self._sync is None:
                    links = self._sync = self._links(SyncLinks)
                    if self._closed:  # by another thread, since the caller has this backend
                        links.close()
        return self._sync

    def loop_links(self) -> LoopLinks:
        """Return the links of the running loop."""
        loop = asyncio.get_running_loop()
        links = self._loops.get(loop)
        if links is None or links.closed.is_set():
            with self._making:
                self._forget_closed_loops()
                links = self._loops[loop] = self._links(LoopLinks)
        return links

    def _forget_closed_loops(self) -> None:
        """Close the links of loops that were closed while tasks waited, which keep such a loop."""
        # A list that is made in one step: other threads remove their loops meanwhile.
        for loop in [reference() for reference in self._loops.keyrefs()]:
            if loop is not None and loop.is_closed() and (links := self._loops.pop(loop, None)):
                links.abandon()

    def _home_sync(self, lease: Lease) -> SyncLinks:
        home = lease.home
        if isinstance(home, SyncLinks) and not home.closed.is_set():
            return home
        return self.sync_links()

    def _links(self, kind: Callable[..., AnyLinks]) -> AnyLinks:
        return kind(
            self.addresses,
            self.deployment,
            master_timeout=self.settings.master_timeout,
            connect_timeout=self.settings.connect_timeout,
            tolerate=self.settings.tolerate,
            notice=self.notice,
            membership=self.membership,
        )

    def forked(self) -> None:
        inherited = [*self._loops.values(), *([self._sync] if self._sync else [])]
        self._making = threading.RLock()
        self._sync = None
        self._loops = weakref.WeakKeyDictionary()
        for links in inherited:
            # Another thread of the parent may have held the lock inside the event; in the child
            # nothing would ever release it.
            links.closed = threading.Event()
            links.abandon()

    def close(self) -> None:
        # The links are kept: a lock that outlives its backend fails and does not reconnect.
        with self._making:
            self._closed, links = True, self._sync
        if links is not None:
            links.close()

    async def aclose(self) -> None:
        links = self._loops.pop(asyncio.get_running_loop(), None)
        if links is not None:
            await links.aclose()


def _check_poll(alias: str) -> None:
    """Raise InvalidRedlock where threads cannot wait for several connections at once."""
    if not hasattr(select, "poll"):
        raise InvalidRedlock(
            f"REDLOCK[{alias!r}]: this process has no select.poll(), on which threads wait for the "
            "masters. eventlet.monkey_patch() removes it: use gevent, threads or asyncio instead."
        )
