"""One client's links as they are shipped: the core of `wire/links`, and bytes to simulated masters.

`ByteWire` stands in for `network.Wire`, with the same clients, faults and checks. Its network also
cuts bytes anywhere, and delivers old replies again. Masters run what the bytes say; which command
that is meant to be is only known to check what they do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from math import log
from statistics import median
from typing import Any, cast

import hiredis

from redlock_django.engine.protocol.commands import Release, Reply
from redlock_django.engine.protocol.votes import Ballot
from redlock_django.engine.steps import Round
from redlock_django.wire.links.late_masters import LONGEST
from redlock_django.wire.links.link import Exchange, Kind, Link, Owed
from redlock_django.wire.links.links import Links
from redlock_django.wire.servers.trust import Joined, Unfit, Unmarked, check, read_trust
from tests.engine.network import ClientLinks, Line, address_of
from tests.engine.world import Packed, Violation
from tests.replies import packed
from tests.wire.scripted import push, resp

CUT = 0.1  # the part of the bytes that are delivered in two pieces
REPEATED = 0.002  # the part of the replies before which an older one comes again


class InspectedLine(Line):
    """A line whose master is asked for INFO as often as the seed says; 0 leaves it to the core."""

    inspected_every = 0.0

    def inspected(self, now: float) -> None:
        """Note that the server was asked for INFO."""
        super().inspected(now)
        if self.inspected_every:
            self.inspect_at = now + self.inspected_every


class Owing(deque[Owed]):
    """The replies that a link owes; what is written is also noted in `sent`."""

    def __init__(self, owed: Iterable[Owed]) -> None:
        super().__init__(owed)
        self.sent = deque(self)

    def append(self, owed: Owed) -> None:
        """Add a reply that is owed."""
        super().append(owed)
        self.sent.append(owed)


class Connection:
    """One connection of one client to one life of a master."""

    def __init__(self, life: int, link: Link) -> None:
        self.life = life
        self.link = link
        self.alive = True
        self.reader = hiredis.Reader()
        link.owed = owed = Owing(link.owed)
        self.sent = owed.sent  # what the master has not run yet
        self.flying: deque[bytearray] = deque()
        self.returning: deque[bytearray] = deque()
        self.there = 0.0  # when the last bytes arrive: later ones do not overtake them
        self.back = 0.0
        self.numbered = b""  # the last reply to a command of a round


class Attempt:
    """One attempt to connect."""

    def __init__(self, line: Line, sent: float, mode: str) -> None:
        self.line = line
        self.life = line.master.life
        self.sent = sent
        self.mode = mode
        self.is_over = False


@dataclass(eq=False)
class ByteWire(ClientLinks):
    """The links as they are shipped; without `inspected`, they ask for INFO when they want to."""

    _: KW_ONLY
    repeating: float  # until then, some replies come again

    def __post_init__(self) -> None:
        super().__post_init__()
        deployment, membership, clock = self.deployment, self.membership, self.owner.clock
        self.links = Links(
            [address_of(master.name) for master in self.masters], deployment, membership,
            clock.read, master_timeout=self.master_timeout, connect_timeout=self.connect_timeout,
            give_up=self.give_up,
        )  # fmt: skip
        self.lines: list[Line] = []
        for master in self.masters:
            line = InspectedLine(self.world, clock, master)
            line.inspected_every = self.inspected
            self.lines.append(line)
        self.links.masters[:] = self.lines  # every part has this list
        # The real reason names the load of this machine.
        self.links.lateness._reason = lambda *_: "is late"  # type: ignore[method-assign]
        self.steps = self.links.steps
        self.waiters = self.links.waiters
        self.waiters.channel = deployment.wake(self.owner.name)
        self.waiters.is_used = True
        self._connections: list[Connection | None] = [None] * len(self.masters)
        self._is_polling = False
        membership.readers.add(self)
        self.links.changes.connect()
        self._serve()

    # Rounds.

    def exchange(self, asked: Round, wake: Callable[[], None]) -> Exchange:
        """Return a new exchange for a round, not begun yet."""
        exchange = Exchange(asked, wake)
        if asked.awaited and isinstance(asked.commands[0], Release):
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
        self._serve()
        if exchange.asked.awaited:
            self._await(exchange)

    def _await(self, exchange: Exchange) -> None:
        """Check later that a round has its verdict, even if every master is late."""
        since = self.stalled, len(self.owner.clock.steps)
        longest = 2 * (LONGEST + 1) * self.master_timeout / self.owner.clock.rate
        self.world.after(longest, self.owner.hear, self._check_decided, exchange, since)

    def _check_decided(self, exchange: Exchange, since: tuple[float, int]) -> None:
        if exchange.decided or self.closed:
            return
        is_disturbed = since != (self.stalled, len(self.owner.clock.steps))
        if not is_disturbed and not exchange.asked.waits_on(self.owner.clock.read()):
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
            connection = self._connections[line.index]
            if connection is not None and connection.link is not line.link:
                self._cut_off(line, connection)
            elif connection is not None and connection.link.out:
                data, connection.link.out[:] = bytes(connection.link.out), b""
                self._post(line, connection, data)
            if line.undialed is not None and not self.closed:
                (line.reason, delay), line.undialed = line.undialed, None
                self._dial(line, self.rng.uniform(0.03, 0.2) if delay else 0.0)
            if line.suspect and not self.world.stepping:
                raise Violation(f"{line.master.name} is taken to have stepped, but no clock steps")
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
            took = [line.link.took for line in self.lines if line.link is not None]
            if took and links.lateness.rule.patience(median(took)) > self.master_timeout:
                self.patient_at = self.world.now
            links.judge(now)
        self._serve()

    # Connections come and go.

    def _dial(self, line: Line, delay: float) -> None:
        self.world.after(delay, self.owner.hear, self._attempt, line)

    def _attempt(self, line: Line) -> None:
        if self.closed or line.link is not None:
            return
        now = self.owner.clock.read()
        attempt = Attempt(line, now, "mark" if self.membership.may_mark(now) else "join")
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
                reply = master.join(master.run, attempt.mode, self.membership.fingerprint)
                result = master.run, reply
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
            joined: Any = Joined(None, run_id, trust, (), attempt.sent, True)  # type: ignore[arg-type]
            link = self.links.changes.joined(line, joined)
            self._connections[line.index] = Connection(attempt.life, link)
        self._serve()

    def _ended(self, line: Line, link: Link | None) -> None:
        if link is not None and line.link is link and not self.closed:
            self.links.changes.lose(line, "closed the connection", ended=True)
            self._serve()

    def notice(self, line: Line) -> None:
        """Schedule that the client notices the master's end of the link as closed."""
        connection = self._connections[line.index]
        if connection is not None and not line.cut_back:
            when = max(connection.back, self.world.now + self._delay(line))
            self.world.at(when, self.owner.hear, self._ended, line, connection.link)

    def _cut_off(self, line: Line, connection: Connection) -> None:
        """Close a connection; deliver a part of what is in flight, late and in order."""
        self.world.note(self.owner.name, "xx", line.master.name, line.reason)
        self.world.seen["link lost"] += 1
        connection.alive = False
        self._connections[line.index] = None
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
        connection = self._connections[line.index]
        if connection is None:
            return
        for piece in connection.flying:
            self._send(line, connection, piece)
        for piece in connection.returning:
            self._bring(line, connection, piece)

    def close(self) -> None:
        """End with the process: its kernel still delivers a part."""
        self.closed = True
        for line, connection in zip(self.lines, self._connections, strict=True):
            if connection is not None:
                self._cut_off(line, connection)

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
            owed = connection.sent.popleft()
            reply = self._run(line, connection, words, owed)
            older, again = connection.numbered, b""
            if older and self.world.now < self.repeating and self.rng.random() < REPEATED:
                self.world.seen["replies repeated"] += 1
                again = older
            if owed.number:  # checks and kept releases have no number to know them by
                connection.numbered = reply
            self._answer(line, connection, again + reply)

    def _run(self, line: Line, connection: Connection, words: list[bytes], owed: Owed) -> bytes:
        """Return a master's reply to a command."""
        master = line.master
        if owed.kind is Kind.INFO:
            return resp(
                "".join(f"{key}:{value}\r\n" for key, value in master.info.items()).encode()
            )
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
            return resp(packed(master.join(run_id, mode, fingerprint)))
        command = owed.command
        assert command is not None
        self.world.note(master.name, "runs", command.name, "of", self.owner.name)
        said, marker, ready_at = Packed(command), b"", 0
        if command.trusted:
            *argv, marker, at = argv
            ready_at = int(at)
        said.keys, said.argv = keys, argv[1:]
        return resp(packed(master.say(said, int(argv[0]), marker, ready_at)))

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
            self.links.replies.feed(line, connection.link, self.owner.clock.read())
            self._serve()
