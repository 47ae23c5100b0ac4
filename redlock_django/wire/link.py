"""What both colours share: pipelined links, owed replies, the breaker, the restart guard.

House rules:

1. A link is a FIFO. Every command written is owed one reply; a reply nobody waits for
   any more is read and dropped, never taken for an answer to something else.
2. A release goes out on the same link as its acquire, behind it. Where that link is gone,
   the release is kept, and is the first thing said after the next join, with a tombstone.
3. A master that owes a reply for longer than the timeout loses its link. Only time in
   which somebody was polling counts, and only after one more read that does not wait.
4. Nothing here blocks and nothing here locks: a driver lets one thread in at a time.
"""

from __future__ import annotations

import logging
import random
import socket
import ssl
import struct
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import hiredis

from redlock_django.engine.commands import NOT_READY, Command, Release, Terms, script
from redlock_django.engine.quorum import NOT_ASKED, Verdict, Vote, failed, quorum
from redlock_django.engine.rounds import Round
from redlock_django.wire.address import Address
from redlock_django.wire.clock import clock
from redlock_django.wire.join import (
    Joined,
    Trust,
    Unfit,
    first_word,
    join,
    join_arguments,
    read_trust,
)

logger = logging.getLogger("redlock_django")

KEPT = 10_000  # releases and unanswered tokens remembered for a master that is away
CHUNK = 65536
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ProtocolDesync(Exception):
    """A reply does not belong to the command it should answer: the link is worthless."""


class Exchange:
    """One round on its way."""

    __slots__ = ("commands", "decided", "number", "tally", "wake")

    def __init__(self, asked: Round, number: int, wake: Callable[[], object]) -> None:
        self.commands = asked.commands
        self.tally = asked.tally
        self.number = number
        self.wake = wake
        self.decided = False

    def cast(self, master: int, vote: Vote) -> None:
        """Count a vote, and wake whoever waits once the verdict is there."""
        if self.tally.cast(master, vote) is not Verdict.PENDING and not self.decided:
            self.decided = True
            self.wake()

    def abandon(self) -> None:
        """Nobody waits any more: no retry of this round may be sent from here on."""
        self.decided = True


class Owed:
    """A reply that a master owes; a `check` of its trust belongs to no exchange."""

    __slots__ = ("command", "exchange", "sent")

    def __init__(self, exchange: Exchange | None, command: Command | None, sent: float) -> None:
        self.exchange = exchange
        self.command = command
        self.sent = sent


class Link:
    """One live connection: what is still to be sent, and what is still owed."""

    __slots__ = (
        "blocked",
        "out",
        "owed",
        "parser",
        "sending",
        "since",
        "socket",
        "tail",
        "waited",
    )

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.parser = hiredis.Reader()
        self.owed: deque[Owed] = deque()
        self.out = bytearray()
        self.tail = b""
        self.waited = 0.0  # seconds somebody has polled in vain for the oldest reply
        self.since = 0.0  # when that silence began
        self.sending = False
        self.blocked = False

    def send(self) -> None:
        """Send as much as the socket takes. Raises OSError, or ProtocolDesync."""
        if self.sending:
            # An interrupt struck between sending and forgetting what was sent: nobody
            # knows which bytes the master has.
            raise ProtocolDesync("a send was interrupted")
        while self.out:
            self.sending = True
            try:
                done = self.socket.send(self.out)
            except WOULD_BLOCK:
                self.sending = False
                return
            del self.out[:done]
            self.sending = False

    def receive(self) -> None:
        """Feed the parser all that has arrived. Raises OSError, or EOFError at the end."""
        while True:
            try:
                data = self.socket.recv(CHUNK)
            except WOULD_BLOCK:
                return
            if not data:
                raise EOFError
            self.parser.feed(data)
            if len(data) < CHUNK and not isinstance(self.socket, ssl.SSLSocket):
                return

    def close(self, *, cut: bool) -> None:
        """Close; with `cut`, what the kernel has not delivered yet is never delivered."""
        if cut:
            with suppress(OSError):
                at_once = struct.pack("ii", 1, 0)
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        with suppress(OSError):
            self.socket.close()


class Master:
    """One master, whether there is a link to it or not."""

    def __init__(self, place: int, address: Address) -> None:
        self.place = place
        self.address = address
        self.link: Link | None = None
        self.run_id = ""
        self.trust: Trust | None = None
        self.reason = "not connected yet"
        self.hopeful = False  # a first attempt to connect is under way
        self.failures = 0
        self.suspect = ""  # a clock step that is being looked into
        self.twin = ""  # the name of another master that is the same server
        self.distrusted_until = 0.0
        self.how = "join"
        self.checking = False
        self.offset: tuple[float, float, float] | None = None
        self.kept: OrderedDict[str, Release] = OrderedDict()
        self.loose: OrderedDict[str, None] = OrderedDict()

    def fault(self, now: float) -> str:
        """Why this master's vote may not be counted now; "" where it may."""
        if self.link is None:
            return self.reason
        if self.twin:
            return f"is the same server as {self.twin}"
        if self.suspect:
            return self.suspect
        if now < self.distrusted_until:
            return f"our own clock stepped: trusted in {self.distrusted_until - now:.0f} s"
        if self.trust is None:
            return "has no marker yet"
        if now < self.trust.ready:
            left = max(self.trust.ready - now, 1)
            text = f"{self.trust.doubt}: trusted in {left:.0f} s"
            if self.trust.doubt == "fresh or flushed" or self.trust.doubt.startswith("waits"):
                text += " ('manage.py redlock_init' trusts fresh masters at once)"
            return text
        return ""

    def keep(self, release: Release) -> None:
        """Say a release again, with a tombstone, as soon as the master is back."""
        self.kept[release.token] = replace(release, bury=True)
        if len(self.kept) > KEPT:
            self.kept.popitem(last=False)

    def loosen(self, token: str) -> None:
        """Remember that an acquire of this token may still arrive on a link that is gone."""
        self.loose[token] = None
        if len(self.loose) > KEPT:
            self.loose.popitem(last=False)

    def backoff(self) -> float:
        """Seconds to the next attempt: 0.1 to 1, with jitter."""
        longest = min(1.0, 0.1 * 2.0 ** min(self.failures, 8))
        return random.uniform(longest / 2, longest)


class Links:
    """The links of one process or one loop to all masters of an alias."""

    def __init__(
        self,
        addresses: Sequence[Address],
        terms: Terms,
        *,
        master_timeout: float,
        connect_timeout: float,
        tolerate: frozenset[str] = frozenset(),
    ) -> None:
        self.terms = terms
        self.master_timeout = master_timeout
        self.connect_timeout = connect_timeout
        self.tolerate = tolerate
        self.masters = [Master(place, address) for place, address in enumerate(addresses)]
        self.voided = float("-inf")  # leases begun before this moment are lost
        self.closed = threading.Event()
        self._numbers = count(1)
        self._stepped: set[int] = set()
        self._dirty: set[int] = set()

    # What a driver supplies.

    def _watch(self, master: Master) -> None:
        """Wait for a link to be readable, and writable where it is `blocked`."""
        raise NotImplementedError

    def _unwatch(self, master: Master) -> None:
        raise NotImplementedError

    def _changed(self) -> None:
        """A master came or went: whoever waits for a quorum of links looks again."""
        raise NotImplementedError

    def deliver(self, place: int, result: Joined | Unfit) -> bool:
        """Take what a dial thread brings, from that thread; False ends the dialling."""
        raise NotImplementedError

    # Connecting.

    def connect(self) -> None:
        """Begin to connect to every master that nobody connects to yet."""
        for master in self.masters:
            if master.link is None and master.reason == "not connected yet":
                self._dial(master, "connecting", 0.0)

    def _dial(self, master: Master, reason: str, delay: float) -> None:
        master.reason = reason
        master.hopeful = delay == 0.0
        threading.Thread(
            target=_dial,
            args=(weakref.ref(self), self.closed, master, self.terms, delay),
            kwargs={"tolerate": self.tolerate, "timeout": self.connect_timeout},
            name=f"redlock-dial-{master.address.name}",
            daemon=True,
        ).start()

    def arrived(self, place: int, result: Joined | Unfit) -> bool:
        """A dial attempt has ended; returns whether another must follow."""
        master = self.masters[place]
        if isinstance(result, Unfit):
            if master.hopeful or master.reason != str(result):
                logger.warning(
                    "redlock master %s is not counted: %s",
                    master.address.name,
                    result,
                    extra={"master": master.address.name},
                )
            master.hopeful = False
            master.reason = str(result)
            master.failures += 1
            self._changed()
            return True
        for text in result.warnings:
            logger.warning("redlock master %s %s", master.address.name, text)
        if master.run_id != result.run_id:
            master.offset = None  # another process, perhaps another machine
        master.run_id = result.run_id
        result.socket.setblocking(False)
        master.link = Link(result.socket)
        master.hopeful = False
        master.reason = ""
        self._find_twins()
        self._watch(master)
        self._trusted(master, result.trust)
        for release in master.kept.values():
            self._write(master, Owed(None, release, clock()), self._pack(release, 0))
            master.loose.pop(release.token, None)
        master.kept.clear()
        if master.how != "join":
            self._check(master, master.how)
        self._changed()
        return False

    def _find_twins(self) -> None:
        first: dict[str, Master] = {}
        for master in self.masters:
            master.twin = ""
            if master.link is None:
                continue
            other = first.setdefault(master.run_id, master)
            if other is not master:
                # Neither is counted: one server must never vote twice, and whoever
                # wrote the settings must see it.
                master.twin, other.twin = other.address.name, master.address.name
                logger.error(
                    "redlock masters %s and %s are one server: neither is counted",
                    other.address.name,
                    master.address.name,
                )

    def _trusted(self, master: Master, trust: Trust) -> None:
        if master.trust is None or master.trust.marker != trust.marker:
            level = logging.WARNING if trust.ready > clock() else logging.INFO
            left = max(0.0, trust.ready - clock())
            logger.log(
                level,
                "redlock master %s %s: trusted in %.1f s",
                master.address.name,
                trust.doubt,
                left,
                extra={"master": master.address.name},
            )
        master.trust = trust
        if master.link is not None:
            master.link.tail = _bulks(trust.marker, trust.ready_at)
        self._note_clock(master, *trust.offset)

    def usable(self) -> int:
        """How many masters may vote now."""
        now = clock()
        return sum(1 for master in self.masters if not master.fault(now))

    def hoping(self) -> bool:
        """Whether connections under way may still make the quorum that is missing."""
        hopeful = sum(1 for m in self.masters if m.hopeful)
        if not hopeful:
            return False
        usable, need = self.usable(), quorum(self.terms.masters)
        return usable < need <= usable + hopeful

    # Sending.

    def begin(self, exchange: Exchange) -> None:
        """Queue a round's commands on the links; `flush` sends them."""
        now = clock()
        asked: list[tuple[Master, Command]] = []
        for master, command in zip(self.masters, exchange.commands, strict=True):
            if command is None:
                exchange.cast(master.place, NOT_ASKED)
                continue
            fault = master.fault(now) if command.trusted or master.link is None else ""
            if fault:
                if isinstance(command, Release):
                    master.keep(command)
                exchange.cast(master.place, failed(fault, sent=False))
            else:
                asked.append((master, command))
        # With a majority known to be down, nothing that needs a quorum is even sent.
        hopeless = exchange.decided and exchange.tally.unreachable
        packed: dict[int, bytes] = {}
        for master, command in asked:
            if hopeless and not isinstance(command, Release):
                exchange.cast(master.place, NOT_ASKED)
                continue
            if isinstance(command, Release) and command.token in master.loose:
                del master.loose[command.token]
                command = replace(command, bury=True)
            data = packed.get(id(command))
            if data is None:
                data = packed[id(command)] = self._pack(command, exchange.number)
            self._write(master, Owed(exchange, command, now), data)

    def exchange(self, asked: Round, wake: Callable[[], object]) -> Exchange:
        """A new exchange for a round."""
        return Exchange(asked, next(self._numbers), wake)

    def _pack(self, command: Command, number: int, *, text: bool = False) -> bytes:
        how = "EVAL" if text else "EVALSHA"
        keys = command.keys()
        code = script(command.name)[0 if text else 1]
        parts: tuple[str | int, ...] = (how, code, len(keys), *keys, number)
        arguments = command.arguments()
        size = len(parts) + len(arguments) + (2 if command.trusted else 0)
        return b"*%d\r\n%s" % (size, _bulks(*parts, *arguments))

    def _write(self, master: Master, owed: Owed, data: bytes) -> None:
        link = master.link
        assert link is not None
        if owed.command is not None and owed.command.trusted:
            data += link.tail
        if not link.owed:
            link.waited, link.since = 0.0, owed.sent
        # An interrupt between these two lines leaves a reply that is never owed or never
        # comes: either way the link is dropped, and nothing is misread.
        link.owed.append(owed)
        link.out += data
        self._dirty.add(master.place)

    def _check(self, master: Master, how: str) -> None:
        """Ask on the live link again whether the master may be trusted."""
        master.how = how
        if master.link is None or (master.checking and how == "join"):
            return
        master.checking = True
        data = _command("EVALSHA", *join_arguments(self.terms, master.run_id, how, 0))
        self._write(master, Owed(None, None, clock()), data)

    def flush(self) -> None:
        """Send what is queued, in one send for each master."""
        while self._dirty:
            master = self.masters[self._dirty.pop()]
            link = master.link
            if link is None:
                continue
            try:
                link.send()
            except (OSError, ProtocolDesync) as error:
                self.lose(master, _broken(error))
                continue
            if link.blocked is not bool(link.out):
                link.blocked = bool(link.out)
                self._watch(master)

    # Receiving.

    def read(self, master: Master) -> None:
        """Read whatever a master has sent, without waiting, and count it."""
        link = master.link
        if link is None:
            return
        ended: Exception | None = None
        try:
            link.receive()
        except (OSError, EOFError) as error:
            ended = error  # what came before the end still counts
        try:
            while (reply := link.parser.gets()) is not False:
                self._answer(master, link, reply)
        except (hiredis.ProtocolError, ProtocolDesync) as error:
            logger.error(
                "redlock master %s: %s",
                master.address.name,
                error,
                extra={"master": master.address.name},
            )
            ended = error
        if ended is not None and master.link is link:
            self.lose(master, _broken(ended))

    def _answer(self, master: Master, link: Link, reply: Any) -> None:
        if not link.owed:
            raise ProtocolDesync("a reply that nobody asked for")
        owed = link.owed.popleft()
        link.waited, link.since = 0.0, clock()
        exchange, command = owed.exchange, owed.command
        if isinstance(reply, hiredis.ReplyError):
            word = first_word(reply)
            if word == "NOSCRIPT" and self._retry(master, exchange, command):
                return
            if command is None:
                master.checking = False
                self._decide_step()
            elif exchange is not None:
                exchange.cast(master.place, failed(f"answered {word}"))
            if word in ("READONLY", "NOAUTH", "LOADING", "MASTERDOWN"):
                self.lose(master, f"answered {word}")  # the next join finds out why
            return
        number = exchange.number if exchange is not None else 0
        if not isinstance(reply, list) or len(reply) < 3 or reply[0] != number:
            raise ProtocolDesync("a reply of another round")
        master.failures = 0
        if command is None:
            self._checked(master, reply, owed.sent)
            return
        read = clock()
        steady = self._note_clock(
            master, reply[2] / 1_000_000 - read, reply[2] / 1_000_000 - owed.sent
        )
        if reply[1] == NOT_READY:
            self._check(master, master.how)
        if exchange is not None:
            try:
                vote = command.vote(reply[1:])
            except (ValueError, KeyError, IndexError) as error:
                raise ProtocolDesync("a reply of another shape") from error
            exchange.cast(master.place, vote if steady else failed(master.suspect, time=None))

    def _retry(self, master: Master, exchange: Exchange | None, command: Command | None) -> bool:
        """Answer NOSCRIPT by EVAL, unless the round is over: then its undo is on the way."""
        if command is None:
            asked = join_arguments(self.terms, master.run_id, master.how, 0, text=True)
            data = _command("EVAL", *asked)
        elif isinstance(command, Release) or (exchange is not None and not exchange.decided):
            number = exchange.number if exchange is not None else 0
            data = self._pack(command, number, text=True)
        else:
            return False
        self._write(master, Owed(exchange, command, clock()), data)
        return True

    def _checked(self, master: Master, reply: Any, sent: float) -> None:
        master.checking = False
        master.how = "join"
        try:
            self._trusted(master, read_trust(self.terms, reply, sent, clock()))
        except Unfit as error:
            self.lose(master, str(error))
            return
        if master.suspect and master.place not in self._stepped:
            master.suspect = ""  # marked on the master: its ready-at says the rest
        self._decide_step()
        self._changed()

    # Clocks.

    def _note_clock(self, master: Master, low: float, high: float) -> bool:
        """Narrow down how far a master's clock is from ours; False where it has stepped."""
        now = clock()
        skew = self.terms.max_clock_skew
        if master.offset is not None:
            then_low, then_high, at = master.offset
            slack = 0.01 * (now - at)
            apart = max(low - (then_high + slack), (then_low - slack) - high)
            if apart > skew:
                master.offset = (low, high, now)
                self._suspect(master, apart)
                return False
            if apart <= 0:
                low, high = max(low, then_low - slack), min(high, then_high + slack)
        master.offset = (low, high, now)
        return True

    def _suspect(self, master: Master, apart: float) -> None:
        """A step is proved: ask all the others, to know whose clock it was."""
        master.suspect = f"its clock stepped by {apart:.1f} s"
        self._stepped.add(master.place)
        for other in self.masters:
            if other.link is not None:
                self._check(other, "join")
        self._decide_step()

    def _decide_step(self) -> None:
        if not self._stepped or any(m.checking and m.link for m in self.masters):
            return
        stepped = [self.masters[place] for place in self._stepped]
        self._stepped = set()
        if len(stepped) >= quorum(self.terms.masters):
            # So many at once: it was our own clock that jumped. Whatever we believe of
            # our leases is wrong, and nothing is wrong with the masters.
            now = clock()
            self.voided = now
            for master in stepped:
                master.suspect = ""
                master.distrusted_until = now + self.terms.restart_delay
            logger.error(
                "the clock of this process stepped against a majority of the redlock masters: "
                "its locks are lost, and it takes none for %.1f s",
                self.terms.restart_delay,
            )
        else:
            for master in stepped:
                logger.error(
                    "redlock master %s: %s",
                    master.address.name,
                    master.suspect,
                    extra={"master": master.address.name},
                )
                self._check(master, "distrust")

    # Losing.

    def owing(self) -> list[Master]:
        """The masters that owe a reply."""
        return [m for m in self.masters if m.link is not None and m.link.owed]

    def patience(self) -> float:
        """Seconds to poll until the next link may have to be judged."""
        return min(
            (self.master_timeout - m.link.waited for m in self.owing() if m.link), default=1.0
        )

    def waited(self, masters: Sequence[Master], asked: float, took: float) -> None:
        """Somebody polled `asked` seconds, which took `took`, and these stayed silent.

        What a poll took beyond what was asked is a stall of our own, in which a master
        may have been stalled as well: then only a part of it counts.
        """
        counts = min(asked, took) if took < 2 * asked + 0.005 else asked / 4
        for master in masters:
            link = master.link
            if link is None or not link.owed:
                continue
            link.waited = min(link.waited + counts, clock() - link.since)
            if link.waited >= self.master_timeout:
                self.read(master)
                if master.link is link and link.owed and link.waited >= self.master_timeout:
                    self.lose(master, f"did not answer within {self.master_timeout:g} s", late=True)

    def lose(self, master: Master, reason: str, *, late: bool = False) -> None:
        """Give up a link, tell everybody who waits for it, and connect anew."""
        link = master.link
        if link is None:
            return
        self._unwatch(master)
        master.link = None
        master.checking = False
        # A link that is closed in peace still delivers its releases.
        link.close(cut=not self.closed.is_set())
        for owed in link.owed:
            command = owed.command
            if isinstance(command, Release):
                master.keep(command)
            elif command is not None and command.sets:
                master.loosen(command.token)
            if owed.exchange is not None:
                owed.exchange.cast(master.place, failed(reason))
        # A connection that ended in peace (an idle time-out, a restart) may come back at
        # once; a master that fell behind, or fails again, is left alone for a while.
        calm = not late and master.failures == 0
        delay = 0.0 if calm else master.backoff()
        master.failures += 1
        logger.log(
            logging.INFO if calm else logging.WARNING,
            "redlock master %s: %s",
            master.address.name,
            reason,
            extra={"master": master.address.name},
        )
        if not self.closed.is_set():
            self._dial(master, reason, delay)
        self._decide_step()
        self._changed()

    def __del__(self) -> None:
        self.abandon()

    def shut(self) -> None:
        """Close every link; those who still wait get a failed vote."""
        self.closed.set()
        for master in self.masters:
            self.lose(master, "closed")
            master.reason = "closed"

    def abandon(self) -> None:
        """Let go of everything that was inherited over a fork, without a byte to anybody."""
        self.closed.set()
        for master in self.masters:
            if master.link is not None:
                with suppress(OSError):
                    master.link.socket.close()
                master.link = None
                master.reason = "closed"


def _dial(
    links: weakref.ref[Links],
    closed: threading.Event,
    master: Master,
    terms: Terms,
    delay: float,
    *,
    tolerate: frozenset[str],
    timeout: float,
) -> None:
    """Connect to one master until it works: a daemon thread, one at most for each master."""
    while not closed.wait(delay):
        result: Joined | Unfit
        try:
            result = join(master.address, terms, tolerate, timeout)
        except Unfit as error:
            result = error
        except Exception as error:  # a bug or a misuse must not end the probing silently
            logger.exception("redlock master %s", master.address.name)
            result = Unfit(f"could not be reached: {type(error).__name__}")
        owner = links()
        if owner is None or not owner.deliver(master.place, result):
            if isinstance(result, Joined) and (owner is None or owner.closed.is_set()):
                result.socket.close()
            return
        del owner
        delay = master.backoff()


def nobody() -> None:
    """Wakes nobody: for a round that is put on its way and left alone."""


def _command(*parts: str | bytes | int) -> bytes:
    return b"*%d\r\n%s" % (len(parts), _bulks(*parts))


def _bulks(*parts: str | bytes | int) -> bytes:
    packed = []
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        packed.append(b"$%d\r\n%s\r\n" % (len(raw), raw))
    return b"".join(packed)


def _broken(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "closed the connection"
    if isinstance(error, OSError):
        return f"the connection broke: {error.strerror or type(error).__name__}"
    return f"the replies are out of step: {error}"
