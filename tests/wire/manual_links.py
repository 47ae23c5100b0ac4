"""Links that a test drives step by step: without threads or servers, the test reads and replies.

Time passes only as the test says: it does not matter how long a step takes on a busy machine.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar
from unittest.mock import patch

import hiredis

from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol.commands import Acquire, Command, Release
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.statuses import Status
from redlock_django.engine.protocol.votes import Ballot
from redlock_django.engine.quorum import Tally
from redlock_django.engine.steps import Round
from redlock_django.wire.clock import clock, wall_ns
from redlock_django.wire.drivers.loop import LoopDriver
from redlock_django.wire.drivers.sockets import LinkSocket, Sockets
from redlock_django.wire.drivers.threads import ThreadDriver
from redlock_django.wire.links.link import Exchange, Link
from redlock_django.wire.links.links import Links
from redlock_django.wire.links.master import Master
from redlock_django.wire.notice import ignore
from redlock_django.wire.servers.address import Address
from redlock_django.wire.servers.trust import Joined, Trust, Unfit
from tests.engine.masters import Masters
from tests.engine.mutants import fixture
from tests.replies import packed
from tests.wire.scripted import MARKER, NAMES, resp

AnyDriver = TypeVar("AnyDriver", LoopDriver, ThreadDriver)

TIMEOUT = 0.25
TOKEN = "a" * 32
NOW = 1_000.0  # what our clock shows at first
WALL = 1_760_000_000.0  # and the masters' clocks then


class Time:
    """The clock of both sides, which the test sets."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now

    @property
    def wall(self) -> int:
        """The time that the masters' clocks show, in µs."""
        return round((WALL + self.now - NOW) * 1_000_000)


class RealTime(Time):
    """The clocks of this machine, for links that have a driver."""

    def __call__(self) -> float:
        return clock()

    @property
    def wall(self) -> int:
        return wall_ns() // 1000


class Ends:
    """A master's end of one link: what it receives and sends."""

    def __init__(self, time: Time | None = None) -> None:
        self.time = time or RealTime()
        self.theirs, self._ours = socket.socketpair()
        self._ours.setblocking(False)
        self._reader = hiredis.Reader()

    def joined(self, run_id: str, *, ready: float = 0.0, ahead: float = 0.0) -> Joined:
        """Return what a connecting thread would deliver for this link."""
        now = self.time()
        offset = self.time.wall / 1e6 + ahead - now
        bounds = (offset - 0.005, offset + 0.005)
        trust = Trust(MARKER, 0, now + ready, "waits to be trusted", bounds)
        return Joined(self.theirs, run_id, trust, (), now, True)

    def heard(self) -> list[list[bytes]]:
        """Return every command received since the last call."""
        commands: list[list[bytes]] = []
        while True:
            try:
                data = self._ours.recv(1 << 16)
            except BlockingIOError:
                data = b""
            if not data:
                return commands
            self._reader.feed(data)
            while (command := self._reader.gets()) is not False:
                commands.append(command)

    def names(self) -> list[str]:
        """Return the names of those commands."""
        return [NAMES.get(said[1], said[0].decode()) for said in self.heard()]

    def is_closed_by_the_other(self) -> bool:
        """Return whether the other end was closed."""
        try:
            return self._ours.recv(1 << 16) == b""
        except BlockingIOError:
            return False

    def say(self, data: bytes) -> None:
        """Send bytes, as a reply or unasked."""
        self._ours.sendall(data)

    def hang_up(self) -> None:
        """Close the master's end."""
        self._ours.close()

    def close(self) -> None:
        """Close both ends."""
        self._ours.close()
        self.theirs.close()


def ballot(exchange: Exchange, master: int) -> Ballot | None:
    """Return how a master has voted; None if its vote is not counted yet."""
    vote = exchange.tally.votes[master]
    return None if vote is None else vote.ballot


def fences(exchange: Exchange) -> list[tuple[int, ...]]:
    """Return the fences of each vote of a round that grants."""
    return [vote.fences for vote in exchange.tally.counted()]


class NoDriver:
    """A driver that neither watches links nor takes connections: the test reads and replies."""

    def watch(self, master: Master, connection: LinkSocket) -> None: ...

    def unwatch(self, connection: LinkSocket) -> None: ...

    def changed(self) -> None: ...

    def deliver(self, index: int, result: Joined | Unfit) -> bool:
        return False


DIAL = Sockets._dial  # as it is outside of `manual_links`


def never_dial(sockets: Sockets, master: Master, reason: str, delay: float) -> None:
    """Do not connect to a master; in place of `Sockets._dial`."""
    master.reason, master.undialed = reason, None


@contextmanager
def one_link(
    kind: type[AnyDriver], master_timeout: float = 60.0
) -> Iterator[tuple[AnyDriver, Masters, Ends]]:
    """Return a driver that has a link to one master, and dials no other; and the master's end."""
    masters, ends = Masters(1), Ends()
    with patch.object(Sockets, "_dial", never_dial):
        links = Links(
            [Address.from_url("unix:///nowhere", None)], masters.deployment,
            Membership(masters.deployment), clock,
            master_timeout=master_timeout, connect_timeout=1.0,
        )  # fmt: skip
        driver = kind(links, ignore)
        try:
            driver.sockets.arrived(0, ends.joined("run"))
            yield driver, masters, ends
        finally:
            driver.abandon()
            ends.close()


class ManualLinks(Links):
    """Links without a driver: they neither connect nor wait. `time` is their clock."""

    def __init__(self, time: Time, masters: int = 3, *, failover: bool = False) -> None:
        urls = [f"unix:///nowhere/{index}.sock" for index in range(masters)]
        addresses = [Address.from_url(url, None) for url in urls]
        deployment = Deployment(
            names=tuple(a.name for a in addresses),
            max_clock_skew=0.5,
            restart_delay=5,
            failover=failover,
        )
        super().__init__(
            addresses, deployment, Membership(deployment), time,
            master_timeout=TIMEOUT, connect_timeout=1.0,
        )  # fmt: skip
        self.sockets = Sockets(self, NoDriver(), ignore)
        self.time = time
        self.ends = [Ends(time) for _ in range(masters)]
        for index in range(masters):
            self.join(index)

    def join(self, index: int, *, run_id: str = "", ready: float = 0.0, ahead: float = 0.0) -> Ends:
        """Connect a master (again)."""
        ends = self.new_ends(index)
        self.sockets.arrived(index, ends.joined(run_id or f"{index}", ready=ready, ahead=ahead))
        return ends

    def link(self, index: int) -> Link:
        """Return the link to a master, which must have one."""
        link = self.masters[index].link
        assert link is not None
        return link

    def connection(self, index: int) -> LinkSocket:
        """Return the connection to a master, which must have one."""
        connection: LinkSocket = self.link(index).connection
        return connection

    def read(self, *masters: Master) -> None:
        """Read what these masters have sent."""
        self.sockets.read(masters)

    def cut(self, master: Master, reason: str, *, late: bool = False) -> None:
        """Lose the link to a master."""
        self.changes.lose(master, reason, late=late)
        self.sockets.flush()

    def age(self, seconds: float) -> None:
        """Make all that is owed so many seconds older."""
        for master in self.owing():
            for owed in self.link(master.index).owed:
                owed.sent -= seconds

    def poll(self, seconds: float, *, age: float = 0.0) -> None:
        """Judge lateness after a poll of so many seconds; first make all that is owed older."""
        self.age(age)
        self.lateness.running._counted -= seconds
        self.sockets.waited(seconds, seconds, self.time())

    def new_ends(self, index: int) -> Ends:
        """Close a master's connection, and return another one, which has not arrived yet."""
        self.ends[index].close()
        self.ends[index] = ends = Ends(self.time)
        return ends

    def ask(self, command: Command, *indexes: int, patient: float = 0.0) -> Exchange:
        """Send a round's command to some masters, or to all; it is patient for these seconds."""
        where = indexes or range(len(self.masters))
        commands = tuple(command if m.index in where else None for m in self.masters)
        rivals = isinstance(command, Acquire)
        skew = self.deployment.skew if command.trusted else None
        tally = Tally(len(self.masters), skew=skew, rivals=rivals)
        until = self.time() + patient if patient else 0.0
        asked = Round(commands, tally, patient=until)
        exchange = Exchange(asked, lambda: None)
        self.sockets.read_late()
        self.begin(exchange)
        self.sockets.flush()
        return exchange

    def acquire(self, token: str = TOKEN) -> Acquire:
        """Return a command that acquires a lock."""
        return Acquire(
            deployment=self.deployment, resources=("r",), value=f"{token} {{}}", ttl=10, proposal=1
        )

    def release(self, token: str = TOKEN) -> Release:
        """Return a command that releases it."""
        return Release(deployment=self.deployment, resources=("r",), value=f"{token} {{}}")

    def say(self, index: int, *data: bytes) -> None:
        """Send this from a master, and read it, each part alone."""
        for part in data:
            self.ends[index].say(part)
            self.read(self.masters[index])
        self.sockets.flush()

    def no_script(self, index: int) -> list[bytes]:
        """Reply that a script is not known; return the last command that this causes."""
        self.ends[index].heard()
        self.say(index, b"-NOSCRIPT No matching script.\r\n")
        said = self.ends[index].heard()
        assert said
        return said[-1]

    def reply(
        self,
        index: int,
        number: int,
        status: int = 1,
        *,
        ahead: float = 0.0,
        fence: int = 7,
        fences: int = 1,
    ) -> None:
        """Reply to an acquire, or with no `fences` to a release, for a master with a clock."""
        now = self.time.wall + round(ahead * 1e6)
        reply = [number, status, now, *[fence] * (fences if status == 1 else 0)]
        self.say(index, resp(packed(reply)))

    def grant(self, exchange: Exchange, *indexes: int, ahead: float = 0.0) -> Exchange:
        """Reply to a round that acquires one lock, for some masters, or for all; return it."""
        for index in indexes or range(len(self.masters)):
            self.reply(index, exchange.number, ahead=ahead)
        return exchange

    def trusted(self, index: int, status: int = Status.KNOWN, *, ahead: float = 0.0) -> None:
        """Reply to a check of a master's trust."""
        now = self.time.wall + round(ahead * 1e6)
        fingerprint = self.membership.fingerprint.encode()
        if status == Status.MISMATCH:
            fingerprint = b"n=9,ttl=9,skew=9,delay=9"
        marker = b"" if status == Status.UNMARKED else b"%x %d %s" % (index, now, fingerprint)
        self.say(index, resp(packed([0, status, now, marker])))


@contextmanager
def manual_links(
    masters: int = 3,
    dial: Callable[[Sockets, Master, str, float], None] = never_dial,
    *,
    failover: bool = False,
) -> Iterator[ManualLinks]:
    """Open such links, and close them afterwards; `dial` takes the place of `Sockets._dial`."""
    time = Time()
    with ExitStack() as stack:
        stack.enter_context(patch("redlock_django.wire.drivers.sockets.clock", time))
        stack.enter_context(patch.object(Sockets, "_dial", dial))
        links = ManualLinks(time, masters, failover=failover)
        try:
            yield links
        finally:
            links.sockets.abandon()
            for ends in links.ends:
                ends.close()


@fixture
def links() -> Iterator[ManualLinks]:
    """Open links to three masters."""
    with manual_links() as opened:
        yield opened


@fixture
def single() -> Iterator[ManualLinks]:
    """Open a link to a single master."""
    with manual_links(1) as opened:
        yield opened
