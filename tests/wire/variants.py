"""The sync and async drivers behind one interface, so that one scenario runs through both."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

import pytest

from redlock_django.backends.redis import RedisBackend
from redlock_django.backends.redis.settings import TOLERABLE, RedlockSettings
from redlock_django.engine.protocol.deployment import Deployment, identity
from redlock_django.wire.drivers.loop import LoopDriver
from redlock_django.wire.drivers.threads import ThreadDriver
from redlock_django.wire.servers.address import Address
from redlock_django.wire.servers.trust_declaration import declare, read_state
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
    from typing import Any

    from redlock_django.engine.validity import Lease, LeaseState, RedlockLease
    from redlock_django.testing.masters import LocalMaster
    from redlock_django.wire.links.links import Links
    from redlock_django.wire.links.master import Master

Result = TypeVar("Result")

VARIANTS = ("threads", "loop")

both = pytest.mark.parametrize("name", VARIANTS)
threads_by_day = pytest.mark.parametrize(
    "name", ["threads", pytest.param("loop", marks=pytest.mark.nightly)]
)
"""For a test of what both drivers share: by day, the one for threads shows it."""
HOLDER = '{"app":"tests"}'

SOON: dict[str, Any] = {"master_timeout": 0.5, "give_up": 1.25}
"""For tests in which the link of a master that hangs is given up."""

PATIENT: dict[str, Any] = {"master_timeout": 3.0, "connect_timeout": 5.0}
"""For tests in which no master is late, however long a busy machine stops a server or thread."""


class ImpatientBackend(RedisBackend):
    """A backend that gives the link of a late master up after `give_up` seconds of silence."""

    give_up: float | None = None

    def _links(self) -> Links:
        links = super()._links()
        if self.give_up is not None:
            links.lateness.give_up = self.give_up
        return links


def make_backend(
    urls: Sequence[str],
    *,
    options: Mapping[str, Any] | None = None,
    restart_delay: float = 0.0,
    max_ttl: float = 10.0,
    max_clock_skew: float = 0.5,
    master_timeout: float = 1.0,
    connect_timeout: float = 1.0,
    tolerate: frozenset[str] = frozenset(),
    members: str = "",
    failover: bool = False,
    give_up: float | None = None,
) -> RedisBackend:
    """Return a backend over the masters at `urls`, with times short enough for tests.

    Clients that reach the same masters at different addresses, because each has proxies of its
    own, are one deployment if they have the same `members` (letters and digits).
    """
    addresses = tuple(Address.from_url(url, options) for url in urls)
    deployment = Deployment(
        names=tuple(address.name for address in addresses),
        max_ttl=max_ttl,
        max_clock_skew=max_clock_skew,
        restart_delay=restart_delay,
        members=members or identity(address.store for address in addresses),
        failover=failover,
    )
    backend = ImpatientBackend(
        "tests",
        RedlockSettings(
            addresses=addresses,
            deployment=deployment,
            max_ttl=max_ttl,
            master_timeout=master_timeout,
            connect_timeout=connect_timeout,
            tolerate=tolerate,
        ),
    )
    backend.give_up = give_up
    return backend


def trust(master: LocalMaster, deployment: Deployment) -> None:
    """Declare a fresh master trusted now, as `manage.py redlock_init` does."""
    state = read_state(Address.from_url(master.url), deployment, frozenset(TOLERABLE), 5.0)
    declare(state, deployment, 5.0, "trust")


class Variant(ABC):
    """A backend through one of its drivers; every call blocks until it is done."""

    def __init__(self, backend: RedisBackend) -> None:
        self.backend = backend

    @abstractmethod
    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the backend, by its sync name, and return its result."""

    def acquire(
        self, *resources: str, ttl: float = 8.0, wait: float = 0.0, holder: str = HOLDER,
        limit: int = 1, given: Lease | None = None,
    ) -> RedlockLease:  # fmt: skip
        """Acquire a lock on all resources, or take the one that was `given`."""
        lease: RedlockLease = self.call("acquire", resources, ttl, wait, holder, limit, given)
        return lease

    def extend(self, lease: RedlockLease, ttl: float = 8.0) -> tuple[LeaseState, RedlockLease]:
        """Extend a lease."""
        extended: tuple[LeaseState, RedlockLease] = self.call("extend", lease, ttl)
        return extended

    def release(self, lease: RedlockLease) -> bool | None:
        """Release a lease."""
        freed: bool | None = self.call("release", lease)
        return freed

    @abstractmethod
    def inside(self, function: Callable[[], Result]) -> Result:
        """Call a function where it may use the links: under their mutex, or on their loop."""

    @abstractmethod
    def end_poll(self) -> None:
        """End the poll under way as its time-out would: the driver looks for late masters."""

    @abstractmethod
    def close(self) -> None:
        """Close the links, and the loop if there is one."""

    @property
    @abstractmethod
    def driver(self) -> ThreadDriver | LoopDriver:
        """Return the driver of this variant."""

    @property
    def links(self) -> Links:
        """Return the links that it drives."""
        return self.driver.links

    def start(self) -> None:
        """Connect, and wait until every master that answers is joined."""
        self.release(self.acquire("warm-up", wait=60.0))

    def usable(self) -> int:
        """Return how many masters may vote now."""
        return self.inside(self.links.link_wait.usable)

    def wait_usable(self, masters: int, seconds: float = 60.0) -> None:
        """Wait until that many masters may vote."""
        until(
            lambda: self.usable() == masters,
            f"{masters} usable masters: {[self.fault(m) for m in self.links.masters]}",
            seconds=seconds,
        )

    def wait_joined(self) -> None:
        """Wait until there is a link to every master, whether it may vote or not."""
        masters = self.links.masters
        until(lambda: all(m.link for m in masters), f"links: {[m.reason for m in masters]}")

    def wait_fault(self, text: str) -> None:
        """Wait until no master is counted, each for a reason that begins with `text`."""
        masters = self.links.masters
        until(
            lambda: all(self.fault(m).startswith(text) for m in masters),
            f"{text}: {[self.fault(m) for m in masters]}",
        )

    def wait_gone(self, *indexes: int) -> None:
        """Wait until the links to these masters are given up."""
        masters = [self.links.masters[index] for index in indexes]
        until(lambda: all(m.link is None for m in masters), f"links {indexes} are given up")

    def fault(self, master: Master) -> str:
        """Return why a master's vote is not counted now; "" if it is."""
        return self.inside(lambda: master.fault(self.backend.clock()))

    def doubt(self, index: int) -> str:
        """Return why a master is or was not trusted; it stays when the master is trusted again."""
        trust = self.links.masters[index].trust
        return trust.doubt if trust is not None else ""

    def settle(self) -> None:
        """Wait until no master owes a reply."""
        until(lambda: not self.inside(self._owing), "no master owes a reply")

    def _owing(self) -> list[Master]:
        # As the threads' own reader does, but without its pauses.
        for master in self.links.owing():
            self.driver.sockets.read((master,))
        self.driver.sockets.flush()
        return self.links.owing()


class Threads(Variant):
    """The links that threads share."""

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self.backend, method)(*arguments)

    def inside(self, function: Callable[[], Result]) -> Result:
        with self.driver.combiner.mutex:
            return function()

    @property
    def driver(self) -> ThreadDriver:
        return self.backend.thread_driver()

    def end_poll(self) -> None:
        self.driver.poller.wake()

    def close(self) -> None:
        self.backend.close()


class Loop(Variant):
    """The links of a loop that runs in a thread of its own."""

    def __init__(self, backend: RedisBackend) -> None:
        super().__init__(backend)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self._thread.start()
        self._driver = self.run(self._find())

    async def _find(self) -> LoopDriver:
        return self.backend.loop_driver()

    def run(self, work: Coroutine[object, object, Result]) -> Result:
        """Run a coroutine on the loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def call(self, method: str, *arguments: Any) -> Any:
        return self.run(getattr(self.backend, f"a{method}")(*arguments))

    def inside(self, function: Callable[[], Result]) -> Result:
        async def call() -> Result:
            return function()

        return self.run(call())

    @property
    def driver(self) -> LoopDriver:
        return self._driver

    def end_poll(self) -> None:
        self.inside(self._driver._tick)

    def close(self) -> None:
        self.run(self.backend.aclose())
        self.run(self.loop.shutdown_asyncgens())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@contextmanager
def open_variant(name: str, backend: RedisBackend) -> Iterator[Variant]:
    """Yield the backend in the variant of that name; close it afterwards."""
    variant: Variant = Threads(backend) if name == "threads" else Loop(backend)
    try:
        yield variant
    finally:
        variant.close()


@contextmanager
def joined(name: str, masters: Sequence[LocalMaster], **settings: Any) -> Iterator[Variant]:
    """Yield a variant over these masters, or the `urls` given for them, all of them joined."""
    urls = settings.pop("urls", None) or [master.url for master in masters]
    with open_variant(name, make_backend(urls, **{**PATIENT, **settings})) as variant:
        variant.start()
        variant.wait_usable(len(masters))
        variant.settle()
        yield variant


@contextmanager
def trusted(
    name: str, masters: Sequence[LocalMaster], *, urls: Sequence[str] = (), **settings: Any
) -> Iterator[Variant]:
    """Yield a variant over masters that an operator has declared trusted, all of them usable."""
    settings.setdefault("master_timeout", PATIENT["master_timeout"])
    backend = make_backend(urls or [master.url for master in masters], **settings)
    for master in masters:
        trust(master, backend.deployment)
    with open_variant(name, backend) as variant:
        variant.start()
        variant.wait_usable(len(masters))
        variant.settle()
        yield variant


@contextmanager
def sharing(
    name: str, masters: Sequence[LocalMaster], *seen: Sequence[str], **settings: Any
) -> Iterator[list[Variant]]:
    """Yield a variant for each list of addresses at which clients see the same trusted masters."""
    settings.setdefault("master_timeout", PATIENT["master_timeout"])
    backends = [make_backend(urls, members="shared", **settings) for urls in seen]
    for master in masters:
        trust(master, backends[0].deployment)
    with ExitStack() as stack:
        yield [stack.enter_context(open_variant(name, backend)) for backend in backends]
