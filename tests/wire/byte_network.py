"""Clients and masters that exchange bytes through a simulated network, in simulated time.

The clients are the core itself (`Links`) and the engine's own rounds, without a socket, thread or
driver. The masters run the scripts that are shipped. The network holds bytes back, cuts them
anywhere, breaks connections while bytes are on their way, and may deliver a reply twice, or one
that belongs to another connection. `run` raises AssertionError if a promise is broken.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Any

import hiredis

from redlock_django.backends.memory.interpreter import interpreter
from redlock_django.backends.memory.keyspace import Keyspace
from redlock_django.engine import rounds
from redlock_django.engine.attempt import Client
from redlock_django.engine.errors import NotAcquired
from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.votes import Ballot
from redlock_django.engine.steps import Pause, Protocol, Step
from redlock_django.engine.validity import RedlockLease
from redlock_django.wire.links.late_masters import LONGEST
from redlock_django.wire.links.link import Exchange, Link, wake_none
from redlock_django.wire.links.links import Links
from redlock_django.wire.links.master import Master
from redlock_django.wire.servers.address import Address
from redlock_django.wire.servers.trust import Joined, Trust
from tests.wire.scripted import NAMES, resp

MASTERS, CLIENTS = 3, 3
TIMEOUT, TTL = 0.25, 2.0
LONGEST_ROUND = 2 * (LONGEST + 1) * TIMEOUT  # at most, whatever is late
BEGAN = 1_760_000_000.0  # what the masters' clocks show at first
URLS = [f"unix:///nowhere/{index}.sock" for index in range(MASTERS)]
ADDRESSES = [Address.from_url(url) for url in URLS]
DEPLOYMENT = Deployment(names=tuple(one.name for one in ADDRESSES), restart_delay=0, max_ttl=TTL)


def marker(index: int) -> bytes:
    """Return the marker of a master, whose run_id is its index."""
    return b"%x 0 %s" % (index, DEPLOYMENT.fingerprint.encode())


@dataclass(eq=False)
class Line:
    """One connection: when the last bytes arrive each way, for later ones do not overtake them."""

    link: Link
    there: float = 0.0
    back: float = 0.0
    reader: Any = field(default_factory=hiredis.Reader)
    said: bytes = b""  # the last reply


class Network:
    """The masters, the network and the time of one run."""

    def __init__(self, seed: int, *, foreign: float = 0.0, faults: bool = True) -> None:
        self.rng = Random(seed)
        self.foreign = foreign  # how many replies bring one more, which belongs to no command
        self.now = 1_000.0
        self.healed = not faults  # bytes are cut all the same
        self.executed: set[tuple[Link, int]] = set()  # rounds by their links and numbers
        self.seen: Counter[str] = Counter()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.masters = [Keyspace(self._wall) for _ in range(MASTERS)]
        for index, keyspace in enumerate(self.masters):
            keyspace.set(DEPLOYMENT.marker, marker(index))
        self.clients = [Process(self, index) for index in range(CLIENTS)]
        self.holds: list[tuple[float, float, int]] = []  # from, until, fence

    def _wall(self) -> int:
        return round((BEGAN + self.now) * 1_000_000)

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Run an event after so many seconds."""
        heapq.heappush(self._events, (self.now + seconds, next(self._order), event))

    def run(self, seconds: float) -> None:
        """Run for so long with faults, then without until all is over; check the promises."""
        end = self.now + seconds
        self._run_until(end)
        self.healed = True
        for client in self.clients:
            client.stopping = True
        self._run_until(self.now + 3 * TTL)
        for client in self.clients:
            assert client.protocol is None, "a caller waits for ever"
            assert not client.links.owing(), "a reply is owed for ever"
        for index, keyspace in enumerate(self.masters):
            assert keyspace.get(DEPLOYMENT.lock("r")) is None, f"a lock is left on master {index}"
        self._check_holds()

    def _run_until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = end

    def _check_holds(self) -> None:
        self.holds.sort()
        for (_, until, fence), (began, _, later) in zip(self.holds, self.holds[1:], strict=False):
            assert until <= began, "two clients held the lock"
            assert fence < later, "a fence did not grow"

    def delay(self) -> float:
        """Return how long bytes take now: seldom longer than any patience."""
        if self.healed or self.rng.random() < 0.98:
            return self.rng.uniform(0.0001, 0.002)
        self.seen["late"] += 1
        return self.rng.uniform(0.01, 12 * TIMEOUT)

    def pieces(self, data: bytes) -> list[bytes]:
        """Return bytes in the pieces in which they arrive."""
        if self.rng.random() < 0.7:
            return [data]
        self.seen["cut"] += 1
        at = self.rng.randrange(len(data) + 1)
        return [data[:at], data[at:]]

    def execute(self, index: int, link: Link, said: list[bytes]) -> bytes:
        """Return a master's reply to a command that came on a link."""
        if said == [b"INFO"]:
            return resp(b"redis_version:7.2.0\r\nrun_id:%d\r\nrole:master\r\n" % index)
        keys = int(said[2])
        self.executed.add((link, int(said[3 + keys])))
        reply = interpreter().run(
            NAMES[said[1]], self.masters[index], said[3 : 3 + keys], said[3 + keys :]
        )
        return resp(reply)


class Process:
    """One client: its links, without a driver, and one lock that it acquires again and again."""

    def __init__(self, network: Network, index: int) -> None:
        self.network = network
        self.stopping = False
        self.protocol: Protocol[Any] | None = None
        self.lease: RedlockLease | None = None
        self.links = Links(
            ADDRESSES, DEPLOYMENT, Membership(DEPLOYMENT), lambda: network.now,
            master_timeout=TIMEOUT, connect_timeout=1.0,
        )  # fmt: skip
        self._lines: list[Line | None] = [None] * MASTERS
        rng = Random(f"{index} {network.rng.random()}")
        self._client = Client(
            DEPLOYMENT,
            iter(lambda: f"{rng.getrandbits(128):032x}", ""),
            iter(lambda: round((BEGAN + network.now) * 1_000_000), -1),
            lambda attempts: rng.uniform(0.001, 0.05),
            overrun=0.5,
        )
        for master in self.links.masters:
            network.after(0.0, partial(self._join, master))
        network.after(0.01, self._acquire)
        network.after(TIMEOUT / 4, self._tick)

    # The lock.

    def _acquire(self) -> None:
        if self.stopping:
            return
        now = self.network.now
        self._begin(
            rounds.acquire(self._client, ("r",), TTL, "{}", now=now, wait=0.2), self._acquired
        )

    def _acquired(self, lease: RedlockLease | None) -> None:
        if lease is None:
            self.network.after(0.01, self._acquire)
            return
        self.network.seen["acquired"] += 1
        held_for = self.network.rng.uniform(0.0, 0.1)
        self.network.after(held_for, partial(self._release, lease, self.network.now))

    def _release(self, lease: RedlockLease, began: float) -> None:
        until = min(self.network.now, lease.until)
        self.network.holds.append((began, until, lease.fences[0]))
        self._begin(rounds.release(DEPLOYMENT, lease), lambda _: self._acquire())

    def _begin(self, protocol: Protocol[Any], then: Callable[[Any], None]) -> None:
        self.protocol = protocol
        self._go_on(lambda: next(protocol), then)

    def _go_on(self, step: Callable[[], Step], then: Callable[[Any], None]) -> None:
        protocol = self.protocol
        assert protocol is not None
        go_on = partial(self._go_on, lambda: protocol.send(self.network.now), then)
        try:
            asked = step()
        except StopIteration as done:
            self.protocol = None
            self.network.after(0.0, partial(then, done.value))
        except NotAcquired:
            self.network.seen["not acquired"] += 1
            self.protocol = None
            self.network.after(0.0, partial(then, None))
        else:
            if isinstance(asked, Pause):
                self.network.after(asked.seconds, go_on)
                return
            exchange = Exchange(asked, wake_none)
            if asked.awaited:
                asked_at = [(m, m.link) for m in self.links.masters]
                exchange.wake = partial(self._decided, exchange, asked_at, self.network.now, go_on)
            self.links.begin(exchange)
            self._serve()
            if not asked.awaited:
                self.network.after(0.0, go_on)

    def _decided(
        self,
        exchange: Exchange,
        asked_at: list[tuple[Master, Link | None]],
        began: float,
        go_on: Callable[[], None],
    ) -> None:
        """Check the verdict of a round, and go on."""
        assert self.network.now - began < LONGEST_ROUND, "a round waited for a late master"
        for master, link in asked_at:
            vote = exchange.tally.votes[master.index]
            if vote is not None and vote.ballot is not Ballot.FAILED:
                assert link is not None
                assert (link, exchange.number) in self.network.executed, "a vote of another round"
        self.network.after(0.0, go_on)

    # The driver.

    def _serve(self) -> None:
        """Do what the links have left to do."""
        for master in sorted(self.links.dirty, key=lambda master: master.index):
            line, link = self._lines[master.index], master.link
            if line is not None and line.link is not link:
                self.network.seen["links gone"] += 1
                self._lines[master.index] = None
            elif line is not None and link is not None and link.out:
                data, link.out[:] = bytes(link.out), b""
                for piece in self.network.pieces(data):
                    line.there = max(line.there, self.network.now + self.network.delay())
                    arrive = partial(self._arrive, master, line, piece)
                    self.network.after(line.there - self.network.now, arrive)
            if master.undialed is not None:
                master.undialed = None
                self.network.after(self.network.rng.uniform(0.01, 0.1), partial(self._join, master))
            self.links.dirty.discard(master)

    def _join(self, master: Master) -> None:
        if master.link is not None:
            return
        now = self.network.now
        trust = Trust(marker(master.index), 0, now, "", (BEGAN - 0.001, BEGAN + 0.001))
        joined: Any = Joined(None, f"{master.index}", trust, (), now)  # type: ignore[arg-type]
        self._lines[master.index] = Line(self.links.changes.joined(master, joined))
        self._serve()

    def _arrive(self, master: Master, line: Line, data: bytes) -> None:
        """Run the commands that have reached a master, whether or not their client is there."""
        network = self.network
        line.reader.feed(data)
        while (said := line.reader.gets()) is not False:
            reply = network.execute(master.index, line.link, said)
            if network.rng.random() < network.foreign and not network.healed:
                other = network.rng.choice(network.clients)._lines[master.index]
                network.seen["foreign"] += 1
                reply += line.said if other is None else other.said
            line.said = reply
            for piece in network.pieces(reply):
                line.back = max(line.back, network.now + network.delay())
                network.after(line.back - network.now, partial(self._receive, master, line, piece))

    def _receive(self, master: Master, line: Line, data: bytes) -> None:
        if master.link is not line.link:
            return  # the connection is lost, and these bytes with it
        if not self.network.healed and self.network.rng.random() < 0.01:
            self.network.seen["lost"] += 1
            self.links.changes.lose(master, "lost", ended=True)
        else:
            line.link.received += data
            self.links.replies.feed(master, line.link, self.network.now)
        self._serve()

    def _tick(self) -> None:
        self.links.lateness.running.polled(TIMEOUT / 4, TIMEOUT / 4, self.network.now)
        self.links.judge(self.network.now)
        self.links.changes.retry()
        self._serve()
        self.network.after(TIMEOUT / 4, self._tick)
