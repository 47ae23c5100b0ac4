"""One client's links as they are shipped: the core of `wire/links`, and bytes to simulated masters.

The network cuts bytes anywhere, holds them back, and delivers old replies again. When a link is
lost, a part of what is in flight is lost with it; the rest still arrives, late. Masters run what
the bytes say; which command that is meant to be is only known to check what they do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial
from math import log
from random import Random
from typing import Any, Protocol, cast

import hiredis
from redis.connection import Connection as RedisConnection

from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol.commands import Command, Release, Reply
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.statuses import Status
from redlock_django.engine.protocol.votes import Ballot, Vote
from redlock_django.engine.steps import Round
from redlock_django.wire.links.late_masters import LONGEST
from redlock_django.wire.links.link import Exchange, Kind, Link, Owed
from redlock_django.wire.links.links import Links
from redlock_django.wire.links.master import Master
from redlock_django.wire.servers.address import Address
from redlock_django.wire.servers.trust import Joined, Unfit, Unmarked, check, read_trust
from tests.engine.stepping import Request, StepCheck, Truth
from tests.engine.world import RARE, Clock, SimulatedMaster, Violation, World
from tests.replies import packed, unpacked
from tests.wire.scripted import push, resp

CUT = 0.1  # the part of the bytes that are delivered in two pieces
REPEATED = 0.002  # the part of the replies before which an older one comes again
LOST_BY = {Kind.INFO: "given up for its INFO", Kind.COMMAND: "answered by an error"}


class Owner(Protocol):
    """The client that owns a wire. While it is paused, it receives no events."""

    name: str
    clock: Clock
    disturbed: int  # how often it was stopped, or its clock stepped

    def hear(self, what: Callable[..., None], *args: Any) -> None:
        """Receive an event: now, or at the end of a pause."""

    def blamed(self) -> None:
        """Note that a majority's clocks seemed to step at once, so that our own clock stepped."""


class Line(Master):
    """The state that one client keeps about one master, with or without a link."""

    def __init__(
        self, world: World, ours: Clock, master: SimulatedMaster, inspected_every: float
    ) -> None:
        super().__init__(master.index, address_of(master.name))
        self.master = master
        self.truth = Truth(world, ours, master) if world.stepping else None
        self.hello: Request | None = None  # the last handshake
        self.connection: Connection | None = None
        self.cut_out = False  # nothing gets from the client to the master
        self.cut_back = False  # nothing gets back
        self.lag = 0.0
        self.freed: set[str] = set()  # tokens that the master has reported as released
        self._inspected_every = inspected_every  # 0.0: when the core wants to

    def inspected(self, now: float) -> None:
        """Note that the server was asked for INFO."""
        super().inspected(now)
        if self._inspected_every:
            self.inspect_at = now + self._inspected_every


@cache
def address_of(name: str) -> Address:
    return Address(name=name, endpoint=name, connection_class=RedisConnection, kwargs={})


class Owing(deque[Owed]):
    """The replies that a link owes. What the checks need to know of each is in `requests`."""

    def __init__(self, wire: Wire, line: Line, owed: Iterable[Owed]) -> None:
        super().__init__()
        self.wire, self.line = wire, line
        self.requests: deque[Request] = deque()
        self.sent: deque[Request] = deque()  # what the master has not run yet
        for one in owed:
            self._add(one)

    def append(self, owed: Owed) -> None:
        """Add a reply that is owed."""
        is_undo = owed.exchange is None and owed.command is not None
        self.wire.world.seen["granted after the refusal"] += is_undo
        self._add(owed)

    def _add(self, owed: Owed) -> None:
        super().append(owed)
        request = Request(self.wire.owner.clock.off, owed)
        self.requests.append(request)
        self.sent.append(request)
        self.wire.note_sent(self.line, owed)

    def popleft(self) -> Owed:
        """Remove the oldest reply that is owed, which was read."""
        request = self.requests.popleft()
        self.wire.step_check.read(self.line, request)
        owed = super().popleft()
        if self.line.link is None and owed.kind in LOST_BY:
            self.wire.world.seen[LOST_BY[owed.kind]] += 1
        return owed


class Connection:
    """One connection of one client to one life of a master."""

    def __init__(self, wire: Wire, line: Line, life: int, link: Link) -> None:
        self.life = life
        self.link = link
        self.alive = True
        self.reader = hiredis.Reader()
        link.owed = self.owed = Owing(wire, line, link.owed)
        self.flying: deque[bytearray] = deque()
        self.returning: deque[bytearray] = deque()
        self.there = 0.0  # when the last bytes arrive: later ones do not overtake them
        self.back = 0.0
        self.numbered = b""  # the last reply to a command of a round


class Attempt:
    """One attempt to connect."""

    def __init__(self, line: Line, sent: float, off: float, mode: str) -> None:
        self.line = line
        self.life = line.master.life
        self.sent = sent
        self.request = Request(off)
        self.mode = mode
        self.is_over = False


@dataclass(eq=False)
class Wire:
    """One client's links to all masters, and the driver that serves them. Times in seconds."""

    world: World
    owner: Owner
    masters: list[SimulatedMaster]
    deployment: Deployment
    membership: Membership
    _: KW_ONLY
    master_timeout: float
    give_up: float
    latency: float
    late: float
    repeating: float  # until then, some replies come again
    inspected: float  # INFO is asked for again after so much time; 0.0: when the core wants to
    connect_timeout: float = 0.3
    closed: bool = False
    patient_at: float = -1.0  # when it last waited longer because its masters are slow

    def __post_init__(self) -> None:
        deployment, membership, clock = self.deployment, self.membership, self.owner.clock
        self.rng: Random = self.world.rng(f"network {self.owner.name}")
        self.links = Links(
            [address_of(master.name) for master in self.masters], deployment, membership,
            clock.read, master_timeout=self.master_timeout, connect_timeout=self.connect_timeout,
            give_up=max(self.give_up, 6 * self.master_timeout),
        )  # fmt: skip
        self.lines = [Line(self.world, clock, one, self.inspected) for one in self.masters]
        self.links.masters[:] = self.lines  # every part has this list
        # The real reason names the load of this machine.
        self.links.lateness._reason = lambda *_: "is late"  # type: ignore[method-assign]
        self.steps = self.links.steps
        self.step_check = StepCheck(self.owner, self.steps, self.lines)
        self.waiters = self.links.waiters
        self.waiters.channel = deployment.wake(self.owner.name)
        self.waiters.is_used = True
        self._is_polling = False
        membership.readers.add(self)
        self.links.changes.connect()
        self._serve()

    # Rounds.

    def exchange(self, asked: Round, wake: Callable[[], None]) -> Exchange:
        """Return a new exchange for a round, not begun yet."""
        exchange = Exchange(asked, wake)
        if asked.awaited and any(isinstance(one, Release) for one in asked.commands):
            exchange.wake = partial(self._released, exchange, wake)
        return exchange

    def _released(self, exchange: Exchange, wake: Callable[[], None]) -> None:
        """Note, at the verdict of a release, which masters have reported it as done."""
        for line, command in zip(self.lines, exchange.asked.commands, strict=True):
            vote = exchange.tally.votes[line.index]
            if command is not None and vote is not None and vote.ballot is Ballot.GRANTED:
                line.freed.add(command.token)
        wake()

    def begin(self, exchange: Exchange) -> None:
        """Send a round's commands to all masters that may be asked."""
        self.links.begin(exchange)
        for line, command in zip(self.lines, exchange.asked.commands, strict=True):
            if not line.usable and line.link is not None and command is not None:
                self._count_doubtful(line, command, exchange.tally.votes[line.index])
        self._serve()
        if exchange.asked.awaited:
            self._await(exchange)

    def _count_doubtful(self, line: Line, command: Command, vote: Vote | None) -> None:
        """Count that a master was asked although it is in doubt, or was not asked."""
        if command.trusted and vote is not None and not vote.sent:
            self.world.seen["late" if line.late else "untrusted"] += 1
        elif command.early and line.waits(self.owner.clock.read()):
            self.world.seen["extended early"] += 1

    def note_sent(self, line: Line, owed: Owed) -> None:
        """Add a command to the transcript."""
        if self.world.transcript is not None:
            what = _described(owed.command) if owed.command else owed.mode or owed.kind.name
            self.world.note(self.owner.name, "->", line.master.name, what)

    def _await(self, exchange: Exchange) -> None:
        """Check later that a round has its verdict, even if every master is late."""
        longest = 2 * (LONGEST + 1) * self.master_timeout / self.owner.clock.rate
        is_patient = exchange.asked.waits_on(self.owner.clock.read())
        check = partial(self._check_decided, exchange, self.owner.disturbed, is_patient)
        self.world.after(longest, self.owner.hear, check)

    def _check_decided(self, exchange: Exchange, disturbed: int, was_patient: bool) -> None:
        if exchange.decided or self.closed:
            return
        if disturbed == self.owner.disturbed and not was_patient:
            raise Violation(f"{self.owner.name} waits for a round that no master decides")
        self._await(exchange)

    def look_again(self) -> None:
        """Read the marker of every master that has a link again."""
        self.links.sender.check_all()
        self._serve()

    # The driver.

    def _serve(self) -> None:
        """Do what the links have left to do."""
        links = self.links
        for master in sorted(links.dirty, key=lambda master: master.index):
            line = cast("Line", master)
            connection = line.connection
            if connection is not None and connection.link is not line.link:
                self._cut_off(line, connection)
            elif connection is not None and connection.link.out:
                data, connection.link.out[:] = bytes(connection.link.out), b""
                self._post(line, connection, data)
            if line.undialed is not None and not self.closed:
                (line.reason, delay), line.undialed = line.undialed, None
                self._dial(line, self.rng.uniform(0.03, 0.2) if delay else 0.0)
        links.dirty.clear()
        links.changes.changed = False
        if not self._is_polling and (links.owing() or any(one.unfinished for one in self.lines)):
            self._is_polling = True
            clock = self.owner.clock
            now = clock.read()
            seconds = max(links.lateness.poll_timeout(now), 1e-6)
            self.world.after(seconds / clock.rate, self.owner.hear, self._polled, seconds, now)

    def _polled(self, asked: float, began: float) -> None:
        """End a poll: what has arrived in a pause of the client is read first."""
        self.world.after(0.0, self.owner.hear, self._judge, asked, began)

    def _judge(self, asked: float, began: float) -> None:
        if self.closed:
            return
        self._is_polling = False
        links, now = self.links, self.owner.clock.read()
        links.changes.retry()
        if links.lateness.running.polled(asked, now - began, now):
            is_linked = any(line.link for line in self.lines)
            if is_linked and links.lateness.patience() > self.master_timeout:
                self.world.seen["patient"] += 1
                self.patient_at = self.world.now
            links.judge(now)
            for line in self.lines:
                self.world.seen["reply expired"] += bool(line.link and line.link.expired)
                self.world.seen["taken for late"] += bool(line.late)
        self._serve()

    # Connections come and go.

    def _dial(self, line: Line, delay: float) -> None:
        self.world.after(delay, self.owner.hear, self._attempt, line)

    def _attempt(self, line: Line) -> None:
        if self.closed or line.link is not None:
            return
        now = self.owner.clock.read()
        mode = "mark" if self.membership.may_mark(now) else "join"
        attempt = Attempt(line, now, self.owner.clock.off, mode)
        if not line.cut_out:
            self.world.after(self._delay(line), line.master.receive, self._greet, attempt)
        silent = Unfit("did not answer in time")
        self.world.after(self.connect_timeout, self.owner.hear, self._dialed, attempt, silent)

    def _greet(self, attempt: Attempt) -> None:
        """Make a master answer a handshake."""
        line, master = attempt.line, attempt.line.master
        result: Unfit | tuple[str, Reply]
        if attempt.life != master.life or not master.up:
            result = Unfit("refused the connection")
        else:
            try:
                check(master.info, frozenset())
            except Unfit as error:
                result = error
            else:
                fingerprint = self.membership.fingerprint
                result = master.run, self._join(line, attempt.request, attempt.mode, fingerprint)
        if not line.cut_back:
            self.world.after(self._delay(line), self.owner.hear, self._dialed, attempt, result)

    def _dialed(self, attempt: Attempt, result: Unfit | tuple[str, Reply]) -> None:
        if attempt.is_over or self.closed:
            return
        attempt.is_over = True
        line, membership, name = attempt.line, self.membership, attempt.line.master.name
        try:
            if isinstance(result, Unfit):
                raise result
            run_id, reply = result
            now = self.owner.clock.read()
            trust = read_trust(membership, name, run_id, reply, attempt.sent, now)
        except Unfit as error:
            self.links.changes.failed(line, error)
            self._dial(line, self.rng.uniform(0.03, 0.2))
            if isinstance(error, Unmarked):
                membership.look_again()
        else:
            self.world.seen["joined"] += 1
            self.world.seen["kept release"] += len(line.pending_releases)
            line.hello = attempt.request
            joined: Any = Joined(None, run_id, trust, (), attempt.sent, True)  # type: ignore[arg-type]
            link = self.links.changes.joined(line, joined)
            line.connection = Connection(self, line, attempt.life, link)
        self._serve()

    def _ended(self, line: Line, link: Link | None) -> None:
        if link is not None and line.link is link and not self.closed:
            self.links.changes.lose(line, "closed the connection", ended=True)
            self._serve()

    def notice(self, line: Line) -> None:
        """Schedule that the client notices the master's end of the link as closed."""
        connection = line.connection
        if connection is not None and not line.cut_back:
            when = max(connection.back, self.world.now + self._delay(line))
            self.world.at(when, self.owner.hear, self._ended, line, connection.link)

    def _cut_off(self, line: Line, connection: Connection) -> None:
        """Close a connection; deliver a part of what is in flight, late and in order."""
        self.world.note(self.owner.name, "xx", line.master.name, line.reason)
        self.world.seen["link lost"] += 1
        connection.alive = False
        line.connection = None
        # A master that cannot be reached does not learn this, and goes on calling.
        self.world.after(self._delay(line), self._unhear, line, connection)
        flying, connection.flying = connection.flying, deque()
        arriving = self.rng.randint(0, len(flying))
        for delay in sorted(self.rng.uniform(0, self.late) for _ in range(arriving)):
            work = (self._work, line, connection, flying.popleft())
            self.world.after(delay, line.master.receive, *work)

    def _unhear(self, line: Line, connection: Connection) -> None:
        hearer = line.master.hearers.get(self.waiters.channel)
        if isinstance(hearer, partial) and hearer.args[1] is connection and not line.cut_out:
            del line.master.hearers[self.waiters.channel]

    def heal(self, line: Line) -> None:
        """End a partition: what was held back goes on, in order."""
        line.cut_out = line.cut_back = False
        connection = line.connection
        if connection is None:
            return
        for piece in connection.flying:
            self._send(line, connection, piece)
        for piece in connection.returning:
            self._bring(line, connection, piece)

    def close(self) -> None:
        """End with the process: its kernel still delivers a part."""
        self.closed = True
        for line in self.lines:
            if line.connection is not None:
                self._cut_off(line, line.connection)

    # Bytes.

    def _delay(self, line: Line) -> float:
        drawn = -log(1.0 - self.rng.random()) * self.latency
        return drawn + line.lag + line.master.slow

    def _pieces(self, data: bytes) -> list[bytearray]:
        if self.rng.random() < CUT:
            self.world.seen["bytes cut"] += 1
            at = self.rng.randrange(len(data) + 1)
            return [bytearray(data[:at]), bytearray(data[at:])]
        return [bytearray(data)]

    def _post(self, line: Line, connection: Connection, data: bytes) -> None:
        for piece in self._pieces(data):
            connection.flying.append(piece)
            if not line.cut_out:
                self._send(line, connection, piece)

    def _send(self, line: Line, connection: Connection, piece: bytearray) -> None:
        connection.there = max(connection.there, self.world.now + self._delay(line))
        self.world.at(connection.there, self._arrive, line, connection, piece)

    def _arrive(self, line: Line, connection: Connection, piece: bytearray) -> None:
        # A lost link removes pieces from `flying`; a partition leaves them there.
        if line.cut_out or not connection.flying or connection.flying[0] is not piece:
            return
        connection.flying.popleft()
        line.master.receive(self._work, line, connection, piece)

    def _work(self, line: Line, connection: Connection, piece: bytearray) -> None:
        """Make the master run the commands that it has received whole."""
        master = line.master
        if connection.life != master.life or not master.up:
            if connection.alive and not line.cut_back:
                ended = (self._ended, line, connection.link)
                self.world.after(self._delay(line), self.owner.hear, *ended)
            return
        connection.reader.feed(bytes(piece))
        while (words := connection.reader.gets()) is not False:
            self.world.seen["messages"] += 1
            request = connection.owed.sent.popleft()
            reply = self._run(line, connection, words, request)
            older, again = connection.numbered, b""
            if older and self.world.now < self.repeating and self.rng.random() < REPEATED:
                self.world.seen["replies repeated"] += 1
                again = older
            assert request.owed is not None
            if request.owed.number:  # checks and kept releases have no number to know them by
                connection.numbered = reply
            self._answer(line, connection, again + reply)

    def _run(
        self, line: Line, connection: Connection, words: list[bytes], request: Request
    ) -> bytes:
        """Return a master's reply to a command."""
        master, owed = line.master, request.owed
        assert owed is not None
        if owed.kind is Kind.INFO:
            info = "".join(f"{key}:{value}\r\n" for key, value in master.info.items())
            return resp(info.encode())
        if owed.kind is Kind.SUBSCRIBE:
            channel = words[1]
            master.hearers[channel.decode()] = partial(self._push, line, connection)
            return push(b"subscribe", channel, 1)
        if master.replica:
            return b"-READONLY You can't write against a read only replica.\r\n"
        count = int(words[2])
        keys, argv = [key.decode() for key in words[3 : 3 + count]], words[3 + count :]
        if owed.kind is Kind.CHECK:
            _, run_id, fingerprint, _, mode = (word.decode() for word in argv)
            return resp(packed(self._join(line, request, mode, fingerprint, run_id)))
        command = owed.command
        assert command is not None
        reply = master.reply_to(command, keys, argv)
        request.answered = master.clock.off if reply.time else None
        self.world.seen["late message"] += not connection.alive
        if self.world.transcript is not None:
            what = f"{_described(command)} of {self.owner.name} = {_shown(reply)}"
            self.world.note(master.name, what, "" if connection.alive else "(late)")
        return resp(packed(reply))

    def _join(
        self, line: Line, request: Request, mode: str, fingerprint: str, run_id: str = ""
    ) -> Reply:
        """Return a master's reply to a handshake or a check."""
        reply = line.master.join(run_id or line.master.run, mode, fingerprint)
        request.answered = line.master.clock.off if reply.time else None
        self.world.seen["met another deployment"] += reply.status == Status.MISMATCH
        return reply

    def _push(self, line: Line, connection: Connection, name: bytes) -> None:
        call = push(b"message", self.waiters.channel.encode(), name)
        self._answer(line, connection, call)

    def _answer(self, line: Line, connection: Connection, data: bytes) -> None:
        if not connection.alive:
            return
        for piece in self._pieces(data):
            connection.returning.append(piece)
            self._bring(line, connection, piece)

    def _bring(self, line: Line, connection: Connection, piece: bytearray) -> None:
        connection.back = max(connection.back, self.world.now + self._delay(line))
        self.world.at(connection.back, self._return, line, connection, piece)

    def _return(self, line: Line, connection: Connection, piece: bytearray) -> None:
        if line.cut_back or not connection.returning or connection.returning[0] is not piece:
            return
        connection.returning.popleft()
        self.owner.hear(self._receive, line, connection, piece)

    def _receive(self, line: Line, connection: Connection, piece: bytearray) -> None:
        if line.link is connection.link and not self.closed:
            connection.link.received += piece
            was_late = line.late
            if self.world.stepping:
                self.step_check.begin(connection.owed.requests)
            self.links.replies.feed(line, connection.link, self.owner.clock.read())
            self.world.seen["in time again"] += bool(was_late and not line.late and line.link)
            self._serve()


def _described(command: Command) -> str:
    extra = "".join(
        f" {name}={value}"
        for name in ("ttl", "proposal", "fences", "bury")
        if (value := getattr(command, name, None))
    )
    return f"{command.name} {command.token[:6]} {'+'.join(command.resources)}{extra}"


def _shown(reply: Reply) -> str:
    status, _, *rest = unpacked(reply)
    shown = [part.decode()[:6] if isinstance(part, bytes) else str(part) for part in rest]
    return " ".join((RARE.get(status, str(status)), *shown))
