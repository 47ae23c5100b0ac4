"""The simulated network: FIFO links that can be lost, with the rules of `wire/links/links.py`.

Late replies are judged by `wire/links/late_masters.py` itself, in the time in which the client
was running.

A single message on a link is never lost: a partition holds it back. When a link is lost, a part
of what is in flight is lost with it; the rest still arrives, late.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache, partial
from math import log
from random import Random
from statistics import median
from typing import Any, Protocol

from redis.connection import Connection

from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol.commands import Acquire, Command, Heal, Release, Reply
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.statuses import Status
from redlock_django.engine.protocol.trust_marker import read_marker
from redlock_django.engine.protocol.votes import Ballot, Vote, failed
from redlock_django.engine.quorum import Verdict, quorum
from redlock_django.engine.steps import Round
from redlock_django.engine.undo import leaves_late_grants, undo_of_late_grant
from redlock_django.wire.links.clock_steps import StepWatch
from redlock_django.wire.links.late_masters import Lateness
from redlock_django.wire.links.master import IDLE, Master
from redlock_django.wire.links.waiters import Waiters
from redlock_django.wire.servers.address import Address
from redlock_django.wire.servers.info import faults, run_of
from tests.engine.stepping import Truth
from tests.engine.world import Clock, Packed, SimulatedMaster, Violation, World
from tests.replies import unpacked

NOT_ASKED = failed("not asked", sent=False)
RARE: dict[int, str] = {
    Status.BURIED: "buried",
    Status.NOT_READY: "not ready",
    Status.FENCE_AHEAD: "fence ahead",
    Status.ABSENT: "absent",
    Status.RESERVED: "promised",
}


class Owner(Protocol):
    """The client that owns a wire. While it is paused, it receives no events."""

    name: str
    clock: Clock

    def hear(self, what: Callable[..., None], *args: Any) -> None:
        """Receive an event: now, or at the end of a pause."""

    def called(self, name: bytes, master: int) -> None:
        """Handle a master's call to one of this owner's waiters."""

    def blamed(self, wire: Wire) -> None:
        """Note that a majority's clocks seemed to step at once, so that our own clock stepped."""


class Exchange:
    """One round on its way. If it is not awaited, its replies are ignored."""

    __slots__ = ("asked", "awaited", "commands", "decided", "number", "tally", "wake")

    def __init__(self, asked: Round, number: int, wake: Callable[[], None]) -> None:
        self.asked = asked
        self.commands, self.tally, self.awaited = asked.commands, asked.tally, asked.awaited
        self.number = number
        self.wake = wake
        self.decided = False

    def abandon(self) -> None:
        """Note that the client does not wait any more."""
        self.decided = True

    def cast(self, master: int, vote: Vote) -> None:
        """Count a vote, and wake the client at the verdict."""
        if not self.awaited:
            return
        verdict = self.tally.cast(master, vote)
        if not self.decided and verdict is not Verdict.PENDING:
            self.decided = True
            self.wake()


@dataclass(slots=True)
class Message:
    """A command on its way, or a join if `packed` is None; `mode` is the join's argument."""

    packed: Packed | None
    sent: float  # by the client's clock
    off: float  # how far that clock was off then
    written: float  # in the seconds that the client was running
    number: int = 0
    exchange: Exchange | None = None
    answered: float = 0.0  # how far the master's clock was off when it answered
    marker: bytes = b""
    ready_at: int = 0
    mode: str = ""
    run_id: str = ""
    fingerprint: str = ""


@dataclass(slots=True, eq=False)
class Push:
    """A call that a master sends to a subscriber."""

    name: bytes


@dataclass(slots=True, eq=False)
class Report:
    """A reply that is not a script's: INFO, or an error."""

    info: dict[str, str] | None = None
    error: str = ""


Received = Reply | Push | Report


class Link:
    """One connection of one client to one life of a master."""

    def __init__(self, life: int, hello: Message) -> None:
        self.life = life
        self.hello = hello
        self.alive = True
        self.joined = False
        self.owed: deque[Message] = deque()
        self.expired = 0  # how many of these replies are so old that they cost their votes
        self.heard = 0.0  # when its last reply came, in the seconds that the client was running
        self.took = 0.0  # how long that reply took
        self.inspected = hello.sent  # when INFO was last asked for
        self.watched = False  # whether an event is scheduled that checks for an overdue reply
        self.flying: deque[Message] = deque()
        self.there = 0.0  # when the last message arrives: later ones do not overtake it
        self.back = 0.0
        self.returning: deque[Received] = deque()


class Line(Master):
    """The state that one client keeps about one master, with or without a link."""

    def __init__(self, world: World, ours: Clock, master: SimulatedMaster) -> None:
        super().__init__(master.index, address_of(master.name))
        self.master = master
        self.truth = Truth(world, ours, master) if world.stepping else None
        self.link: Any = None  # a `Link` of this module
        self.marker = b""
        self.ready_at = 0
        self.ready = 0.0
        self.cut_out = False  # nothing gets from the client to the master
        self.cut_back = False  # nothing gets back
        self.lag = 0.0
        self.freed: set[str] = set()  # tokens that the master has reported as released


@cache
def address_of(name: str) -> Address:
    return Address(name=name, endpoint=name, connection_class=Connection, kwargs={})


@dataclass(eq=False)
class ClientLinks:
    """One client's links to all masters: what both simulations of them have. Times in seconds."""

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
    inspected: float = 0.0  # INFO is asked for again after so much time; 0.0: see each class
    connect_timeout: float = 0.3
    closed: bool = False
    stalled: float = 0.0  # for how long the client was stopped
    patient_at: float = -1.0  # when it last waited longer because its masters are slow

    def __post_init__(self) -> None:
        self.give_up = max(self.give_up, 6 * self.master_timeout)
        self.rng: Random = self.world.rng(f"network {self.owner.name}")


class Wire(ClientLinks):
    """The rules of the links, as they are simulated; without `inspected`, no INFO is asked for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        clock = self.owner.clock
        self.lateness = Lateness(self.master_timeout, self.give_up)
        self.lines = [Line(self.world, clock, master) for master in self.masters]
        self.steps = StepWatch(self.lines, self.deployment, self._check, clock.read)
        self._noticed: set[int] = set()  # indexes of masters that stepped
        self.waiters = Waiters(self.deployment, clock.read)
        self.waiters.channel = self.deployment.wake(self.owner.name)
        self._number = 0
        for line in self.lines:
            self._dial(line, 0.0)

    # Rounds.

    def exchange(self, asked: Round, wake: Callable[[], None]) -> Exchange:
        """Return a new exchange for a round, not begun yet."""
        self._number += 1
        return Exchange(asked, self._number, wake)

    def begin(self, exchange: Exchange) -> None:
        """Send a round's commands to all masters that may be asked."""
        now = self.owner.clock.read()
        missing = sum(line.link is None or bool(line.late) for line in self.lines)
        few = len(self.lines) - missing <= len(self.lines) // 2
        patient = few and exchange.asked.waits_on(now)
        asked: list[tuple[Line, Command]] = []
        for line, command in zip(self.lines, exchange.commands, strict=True):
            if command is None:
                exchange.cast(line.index, NOT_ASKED)
            elif line.link is None:
                if isinstance(command, Release):
                    line.keep_release(command)
                exchange.cast(line.index, _not_sent(line.reason))
            elif command.trusted and ((now < line.ready and not command.early) or line.doubt(now)):
                self.world.seen["untrusted"] += 1
                exchange.cast(line.index, _not_sent("is not trusted yet"))
            elif isinstance(command, Acquire) and self.membership.conflict:
                self.world.seen["refused for another deployment"] += 1
                exchange.cast(line.index, _not_sent("another deployment uses the masters"))
            elif command.trusted and line.late and not patient:
                self.world.seen["late"] += 1
                exchange.cast(line.index, _not_sent(line.late))
            else:
                asked.append((line, command))
        hopeless = exchange.decided and exchange.tally.unreachable
        packed, off = None, self.owner.clock.off
        for line, command in asked:
            if isinstance(command, Release):
                if line.unanswered and command.token in line.unanswered:
                    del line.unanswered[command.token]
                    command = replace(command, bury=True)
            elif hopeless:
                exchange.cast(line.index, NOT_ASKED)
                continue
            if packed is None or packed.command is not command:
                packed = Packed(command)  # most rounds send the same command to all masters
            if self.inspected and now - line.link.inspected > self.inspected:
                line.link.inspected = now
                self._write(line, self._message(None, mode="info"))
            message = Message(packed, now, off, self._running(), exchange.number, exchange)
            self._write(line, message)
            if line.late:
                self._fail_late(line, exchange, line.late)

    def _message(self, packed: Packed | None, *, mode: str = "", run_id: str = "") -> Message:
        clock = self.owner.clock
        print_ = "" if packed is not None else self.membership.fingerprint
        running = self._running()
        return Message(
            packed, clock.read(), clock.off, running, mode=mode, run_id=run_id, fingerprint=print_
        )

    def _running(self) -> float:
        """Return how many seconds the client was running."""
        return self.world.now - self.stalled

    # Connecting.

    def _dial(self, line: Line, delay: float) -> None:
        self.world.after(delay, self.owner.hear, self._attempt, line)

    def _attempt(self, line: Line) -> None:
        if self.closed:
            return
        if not line.master.up:
            self._again(line)
            return
        may_mark = self.membership.may_mark(self.owner.clock.read())
        link = Link(line.master.life, self._message(None, mode="mark" if may_mark else "join"))
        self._post(line, link, link.hello)
        self.world.after(self.connect_timeout, self.owner.hear, self._check_dial, line, link)

    def _check_dial(self, line: Line, link: Link) -> None:
        if link.alive and not link.joined and not self.closed:
            link.alive = False
            self._again(line)

    def _again(self, line: Line) -> None:
        line.failures += 1
        longest = min(0.2, 0.03 * 2.0 ** min(line.failures, 4))
        self._dial(line, self.rng.uniform(longest / 2, longest))

    def _joined(self, line: Line, link: Link, reply: Reply) -> None:
        if reason := self._saw(line, link.hello, reply):
            link.alive = False
            line.reason = reason
            self._again(line)
            return
        link.joined = True
        link.heard = self._running()
        link.took = self.owner.clock.read() - link.hello.sent
        line.link = link
        if line.run_id != link.hello.run_id:
            line.offset = None
        line.run_id = link.hello.run_id
        line.reason = ""
        line.failures = 0
        self._trust(line, link.hello, reply)
        self.waiters.listen(line.index)
        self.world.seen["joined"] += 1
        for release in line.pending_releases.values():
            self.world.seen["kept release"] += 1
            self._write(line, self._message(Packed(release)))
            line.unanswered.pop(release.token, None)
        line.pending_releases.clear()
        if line.check_mode != "join":
            self._check(line, line.check_mode)

    def _saw(self, line: Line, message: Message, reply: Reply) -> str:
        """Note what a master's marker says; return why the master cannot be used, "" if it can."""
        known = read_marker(reply.rest)
        bound = known is not None and known.run_id == message.run_id
        self.membership.saw(
            line.master.name,
            message.run_id,
            known.deployment if known else "",
            self.owner.clock.read(),
            bound=bound,
        )
        if reply.status == Status.MISMATCH:
            self.world.seen["met another deployment"] += 1
            return "belongs to another deployment"
        if reply.status == Status.UNMARKED:
            self.world.seen["met a master without a marker"] += 1
            for other in self.lines:
                self._check(other, "join")
            return "has no marker"
        return ""

    def _trust(self, line: Line, message: Message, reply: Reply) -> None:
        known = read_marker(reply.rest)
        assert known is not None
        line.marker, line.ready_at = reply.rest, known.ready_at
        line.ready = self.owner.clock.read() + (known.ready_at - reply.time) / 1_000_000
        self._note(line, message, reply)

    # Clocks that step.

    def _check(self, master: Master, mode: str) -> None:
        """Ask again, on the live link, whether the master may be trusted."""
        line = self.lines[master.index]
        if mode == "join" and line.check_mode != "join":
            return
        line.check_mode = mode
        if line.link is None or (line.checking and mode == "join"):
            return
        line.checking = True
        self._write(line, self._message(None, mode=mode, run_id=line.run_id))

    def _note(self, line: Line, message: Message, reply: Reply) -> None:
        """Check whether this reply shows that a clock stepped against the other."""
        if not reply.time:
            return  # the script has not read the master's clock
        time, read = reply.time / 1_000_000, self.owner.clock.read()
        if line.truth is not None and line.offset is None:
            line.truth.forget()
        steady = self.steps.note(line, time - read, time - message.sent)
        if not steady:
            self._noticed.add(line.index)
        if line.truth is not None:
            line.truth.noted(steady, message.answered, message.off, abs(read - message.sent))
        elif not steady:
            raise Violation(f"{line.master.name} is taken to have stepped, but no clock steps")

    def _settle_steps(self, what: Callable[[], None]) -> None:
        """Run a step of the watch; at its end, check whether it should blame our own clock."""
        if not self._noticed or any(
            line.checking and line.link and not line.late for line in self.lines
        ):
            what()
            return
        stepped, self._noticed = self._noticed, set()
        what()
        if len(stepped) >= quorum(len(self.lines)):
            self.owner.blamed(self)

    # Bytes out.

    def _write(self, line: Line, message: Message) -> None:
        link = line.link
        assert link is not None
        if not link.owed and not link.watched:
            link.watched = True
            self.world.after(self.master_timeout, self.owner.hear, self._judge, line, link)
        link.owed.append(message)
        message.marker, message.ready_at = line.marker, line.ready_at
        if message.packed is not None and message.packed.command.early:
            self.world.seen["extended early"] += line.ready > self.owner.clock.read()
            message.ready_at = 0
        self._post(line, link, message)

    def _delay(self, line: Line) -> float:
        # The value of `expovariate(1 / self.latency)`, inlined because this is the hot path.
        drawn = -log(1.0 - self.rng.random()) / (1 / self.latency)
        return drawn + line.lag + line.master.slow

    def _post(self, line: Line, link: Link, message: Message) -> None:
        if self.world.transcript is not None:
            what = message.mode if message.packed is None else _described(message.packed.command)
            self.world.note(self.owner.name, "->", line.master.name, what)
        link.flying.append(message)
        if not line.cut_out:
            link.there = max(link.there, self.world.now + self._delay(line))
            self.world.at(link.there, self._arrive, line, link, message)

    def _arrive(self, line: Line, link: Link, message: Message) -> None:
        # A lost link removes messages from `flying`; a partition leaves them there.
        if line.cut_out or not link.flying or link.flying[0] is not message:
            return
        link.flying.popleft()
        line.master.receive(self._work, line, link, message)

    def _work(self, line: Line, link: Link, message: Message) -> None:
        """Make the master process a message."""
        master, packed = line.master, message.packed
        if link.life != master.life or not master.up:
            if link.alive and not line.cut_back:
                self.world.after(self._delay(line), self.owner.hear, self._ended, line, link)
            return
        reply: Received
        if message.mode == "info":
            reply = Report(info=master.info)
        elif message is link.hello and (error := _unfit(master.info)):
            reply = Report(error=error)
        elif master.replica:
            reply = Report(error="answered READONLY")
        elif packed is None:
            message.run_id = message.run_id or master.run
            reply = master.join(message.run_id, message.mode, message.fingerprint)
            message.answered = master.clock.off
            if link.alive and not link.joined:
                # A real link subscribes a little later, but before any command that queues it.
                master.hearers[self.waiters.channel] = partial(self._push, line, link)
        else:
            reply = master.say(packed, message.number, message.marker, message.ready_at)
            message.answered = master.clock.off
            self._count(packed.command, reply.status)
            if not link.alive:
                self.world.seen["late message"] += 1
            if self.world.transcript is not None:
                late = "" if link.alive else " (late)"
                described = _described(packed.command)
                self.world.note(master.name, f"{described} = {_answer(reply)}{late}")
        if not link.alive:
            return
        link.returning.append(reply)
        self._bring(line, link, reply)

    def _push(self, line: Line, link: Link, name: bytes) -> None:
        if link.alive:
            push = Push(name)
            link.returning.append(push)
            self._bring(line, link, push)
        else:
            self.world.seen["called over a dead link"] += 1

    def _unhear(self, line: Line, link: Link) -> None:
        """Unsubscribe a lost link, if the master can learn that it is lost."""
        hearer = line.master.hearers.get(self.waiters.channel)
        if isinstance(hearer, partial) and hearer.args[1] is link and not line.cut_out:
            del line.master.hearers[self.waiters.channel]

    def _bring(self, line: Line, link: Link, reply: Received) -> None:
        link.back = max(link.back, self.world.now + self._delay(line))
        self.world.at(link.back, self._return, line, link, reply)

    def _count(self, command: Command, status: int) -> None:
        seen: Counter[str] = self.world.seen
        seen["messages"] += 1
        if status in RARE:
            seen[RARE[status]] += 1
        elif status == Status.GRANTED and isinstance(command, Heal):
            seen["healed"] += 1

    # Bytes back.

    def _return(self, line: Line, link: Link, reply: Received) -> None:
        # As in `_arrive`, a partition leaves replies where they are.
        if line.cut_back or not link.alive or not link.returning:
            return
        if link.returning[0] is not reply:
            return
        link.returning.popleft()
        self.owner.hear(self._answer, line, link, reply)

    def _answer(self, line: Line, link: Link, reply: Received) -> None:
        if not link.alive or self.closed:
            return
        if isinstance(reply, Push):
            self.owner.called(reply.name, line.index)
            return
        if not link.joined:
            if isinstance(reply, Report):
                link.alive = False
                line.reason = reply.error
                self._again(line)
            else:
                self._joined(line, link, reply)
            return
        message = link.owed.popleft()
        link.expired = max(link.expired - 1, 0)
        link.heard = self._running()
        link.took = self.owner.clock.read() - message.sent
        if line.late and not link.owed:
            self.world.seen["in time again"] += 1
            line.late = ""
        if isinstance(reply, Report):
            self._reported(line, message, reply)
            return
        assert reply.number == message.number, "a reply was matched to another round"
        if message.packed is None:
            if reason := self._saw(line, message, reply):
                self.lose(line, reason)
                return
            settled = message.mode == line.check_mode  # as `Answers._checked`
            if settled:
                line.checking = False
                line.check_mode = "join"
            self._trust(line, message, reply)
            if settled:
                self._settle_steps(partial(self.steps.checked, line))
            return
        self._note(line, message, reply)
        if reply.status == Status.NOT_READY:
            self._check(line, line.check_mode)
        exchange = message.exchange
        if exchange is not None and exchange.awaited:
            command = message.packed.command
            vote = command.vote(*reply[1:])
            freed = (
                isinstance(command, Release)
                and reply.status == Status.GRANTED
                and not exchange.decided
            )
            if freed and exchange.tally.votes[line.index] is None:
                line.freed.add(command.token)
            doubt = line.doubt(self.owner.clock.read())
            if command.trusted and doubt:
                vote = failed(doubt)
            elif line.truth is not None and command.trusted and vote.ballot is Ballot.GRANTED:
                line.truth.counted()
            exchange.cast(line.index, vote)
            if reply.status == Status.GRANTED:
                self._undo_late(line, message)

    def _undo_late(self, line: Line, message: Message) -> None:
        """Release what a master has granted to a client that was refused already."""
        if (release := _late_undo(message)) is not None:
            self.world.seen["granted after the refusal"] += 1
            self._write(line, self._message(Packed(release)))

    def _reported(self, line: Line, message: Message, reply: Report) -> None:
        """Close the link to a master that answers with an error, or whose INFO shows a fault."""
        if reply.info is not None:
            reason = _unfit(reply.info)
            if not reason and run_of(reply.info) != line.run_id:
                reason = "may have forgotten locks"
            if reason:
                self.world.seen["given up for its INFO"] += 1
                self.lose(line, reason)
            return
        command = None if message.packed is None else message.packed.command
        if message.exchange is not None:
            message.exchange.cast(line.index, failed(reply.error))
        if isinstance(command, Release):
            line.keep_release(command)
        self.world.seen["answered by an error"] += 1
        self.lose(line, reply.error)

    # Losing.

    def _judge(self, line: Line, link: Link) -> None:
        """Judge the replies that a master owes by the rule of `wire/links/late_masters.py`."""
        if line.link is not link or not link.owed:
            link.watched = False
            return
        rule, now = self.lateness, self._running() + 1e-9
        if line.late:
            silent = now - max(link.owed[0].written, link.heard)
            longest = rule.longest_silence(
                sum(bool(one.late) for one in self.lines), len(self.lines)
            )
            if rule.is_over(silent, len(link.owed), longest):
                self.lose(line, "did not answer for long")
                return
            left = min(longest - silent, rule.master_timeout)
        else:
            left = self._expire(line, link, now)
        # A shorter delay might not move the simulated time at all.
        self.world.after(max(left, 1e-6), self.owner.hear, self._judge, line, link)

    def _expire(self, line: Line, link: Link, now: float) -> float:
        """Fail the votes of replies that are too old; return when to judge again."""
        rule, patience = self.lateness, self._patience()
        if patience > self.master_timeout:
            self.world.seen["patient"] += 1
            self.patient_at = self.world.now
        late = rule.is_late(now - link.owed[0].written, patience)
        while link.expired < len(link.owed):
            message = link.owed[link.expired]
            if not (late or rule.has_expired(now - message.written, patience)):
                break
            link.expired += 1
            if message.exchange is not None:
                self.world.seen["reply expired"] += 1
                self._fail_late(line, message.exchange, "did not answer in time")
        if late:
            self.world.note(self.owner.name, "..", line.master.name, "is late")
            self.world.seen["taken for late"] += 1
            line.late = "did not answer in time"
            self._settle_steps(self.steps.decide)
            return rule.master_timeout
        left = patience + rule.master_timeout - (now - link.owed[0].written)
        if link.expired < len(link.owed):
            left = min(left, patience - (now - link.owed[link.expired].written))
        return min(left, rule.master_timeout)

    def _fail_late(self, line: Line, exchange: Exchange, reason: str) -> None:
        """Fail the vote of a late master once the round does not wait for it any more."""
        now = self.owner.clock.read()
        if not self.closed and exchange.asked.waits_on(now):
            self.world.seen["waited for a late quorum"] += 1
            left = min(exchange.asked.patient - now, self.master_timeout)
            again = (self._fail_late, line, exchange, reason)
            self.world.after(max(left, 1e-6) / self.owner.clock.rate, self.owner.hear, *again)
        else:
            exchange.cast(line.index, failed(reason))

    def _patience(self) -> float:
        """Return the age at which a reply costs its vote now, as `LateWatch.patience` does."""
        took = [line.link.took for line in self.lines if line.link is not None]
        return self.lateness.patience(median(took))

    def _ended(self, line: Line, link: Link) -> None:
        if line.link is link:
            self.lose(line, "closed the connection", ended=True)
        elif link.alive and not link.joined:
            link.alive = False
            self._again(line)

    def notice(self, line: Line) -> None:
        """Schedule that the client notices the master's end of the link as closed."""
        if line.link is not None and not line.cut_back:
            link = line.link
            self.world.at(
                max(link.back, self.world.now + self._delay(line)),
                self.owner.hear,
                self._ended,
                line,
                link,
            )

    def lose(self, line: Line, reason: str, *, ended: bool = False) -> None:
        """Close a link, fail the votes that it owes, and connect again."""
        link = line.link
        assert link is not None
        self.world.note(self.owner.name, "xx", line.master.name, reason)
        self.world.seen["link lost"] += 1
        line.link, line.checking, line.late, line.reason = None, False, "", reason
        link.alive = False
        # A master that cannot be reached does not learn this, and goes on calling.
        self.world.after(self._delay(line), self._unhear, line, link)
        self._scatter(line, link)
        if self.closed:
            return
        owed, link.owed = link.owed, deque()
        for message in owed:
            command = None if message.packed is None else message.packed.command
            if isinstance(command, Release):
                line.keep_release(command)
            elif (release := _late_undo(message)) is not None:
                self.world.seen["link lost after the refusal"] += 1
                line.keep_release(release)
            elif command is not None and command.sets:
                line.remember_unanswered(command.token)
            if message.exchange is not None:
                stale = ended and message.written - link.heard > IDLE
                self.world.seen["stale link"] += stale
                message.exchange.cast(line.index, failed(reason, stale=stale))
        self._again(line)
        self.waiters.lose(line.index)
        self._settle_steps(self.steps.decide)

    def _scatter(self, line: Line, link: Link) -> None:
        """Deliver a part of what is in flight, late and in order; drop the rest."""
        flying, link.flying = link.flying, deque()
        arriving = self.rng.randint(0, len(flying))
        for delay in sorted(self.rng.uniform(0, self.late) for _ in range(arriving)):
            self.world.after(delay, line.master.receive, self._work, line, link, flying.popleft())

    def heal(self, line: Line) -> None:
        """End a partition: what was held back goes on, in order."""
        line.cut_out = line.cut_back = False
        link = line.link
        if link is None or not link.alive:
            return
        for message in link.flying:
            link.there = max(link.there, self.world.now + self._delay(line))
            self.world.at(link.there, self._arrive, line, link, message)
        for reply in link.returning:
            self._bring(line, link, reply)

    def close(self) -> None:
        """End with the process: its kernel still delivers a part."""
        self.closed = True
        for line in self.lines:
            if line.link is not None:
                self.lose(line, "gone")


def _late_undo(message: Message) -> Release | None:
    """Return the release that a grant must be answered with, as `wire.exchange.Owed` does."""
    command = None if message.packed is None else message.packed.command
    if message.exchange is None or not message.exchange.awaited:
        return None
    if not leaves_late_grants(command, message.exchange.tally):
        return None
    assert isinstance(command, Acquire)
    return undo_of_late_grant(command)


def _unfit(info: dict[str, str]) -> str:
    """Return why a server must not be counted, by its INFO; "" if it may be."""
    return next((str(one) for one in faults(info)), "")


@cache
def _not_sent(reason: str) -> Vote:
    return failed(reason, sent=False)


def _described(command: Command) -> str:
    extra = "".join(
        f" {name}={value}"
        for name in ("ttl", "proposal", "fences", "bury")
        if (value := getattr(command, name, None))
    )
    return f"{command.name} {command.token[:6]} {'+'.join(command.resources)}{extra}"


def _answer(reply: Received) -> str:
    if not isinstance(reply, Reply):
        return str(reply)
    status, _, *rest = unpacked(reply)
    shown = [part.decode()[:6] if isinstance(part, bytes) else str(part) for part in rest]
    return " ".join((RARE.get(status, str(status)), *shown))
