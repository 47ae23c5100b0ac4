"""An interrupt while a thread reads for all: replies, or the end of a link."""

from __future__ import annotations

import dis
import gc
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache, partial
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import pytest

from redlock_django.engine.protocol.statuses import Status
from redlock_django.engine.protocol.votes import Ballot
from redlock_django.wire.drivers.loop import _complete
from redlock_django.wire.drivers.sockets import LinkSocket, Sockets
from redlock_django.wire.links.link import Link
from redlock_django.wire.links.sender import Sender
from tests.live.test_locking_interrupts import Lines
from tests.replies import packed
from tests.wire.manual_links import DIAL, TOKEN, ManualLinks, manual_links
from tests.wire.scripted import NAMES, push, resp

GRANT = (Status.GRANTED, 7)
REFUSAL = (Status.REFUSED, 1, 900, 5, -1, b"b" * 32)
PUSH = push(b"message", b"a channel", b"a waiter")
"""After a push, replies are parsed."""
ANSWERS: dict[str, tuple[bytes, Sequence[int | bytes]]] = {
    "granted": (b"", GRANT),
    "granted, parsed": (PUSH, GRANT),
    "refused": (b"", REFUSAL),
    "refused, parsed": (PUSH, REFUSAL),
}


def _reply(links: ManualLinks, number: int, parts: Sequence[int | bytes]) -> bytes:
    """Return a reply with the clock of its master, of which `parts` are the status and the rest."""
    status, *rest = parts
    return resp(packed([number, status, links.time.wall, *rest]))


def _strike_everywhere(
    strike: Callable[[tuple[tuple[str, int], int] | None], bool], lines: Lines, least: int
) -> None:
    """Interrupt `strike` at each visit of each line; there must be more than `least` lines."""
    assert strike(None)
    visits = Counter(lines.seen)
    assert len(visits) > least
    for place, times in visits.items():
        for nth in range(1, times + 1):
            assert strike((place, nth)), f"after an interrupt at {place}, time {nth}"


class Checks:
    """Raise KeyboardInterrupt at the nth moment at which Python may handle a signal in the package.

    That is where a function begins, after a call of a function in C, and where a loop repeats.
    """

    def __init__(self) -> None:
        self.wanted = self.seen = 0
        self._last: tuple[FrameType, int] | None = None

    def run(self, work: Callable[[], object], wanted: int = 0) -> None:
        """Call `work`; interrupt it at the `wanted` moment, counted from 1, or never if it is 0."""
        self.wanted, self.seen, self._last = wanted, 0, None
        before = sys.gettrace()
        gc.disable()  # or the drivers of earlier tests are deleted here, and interrupted
        sys.settrace(self._begin)
        try:
            work()
        finally:
            sys.settrace(before)
            gc.enable()

    def everywhere(self, strike: Callable[[int], None], least: int) -> None:
        """Call `strike` for no moment, and for each of the moments that it has; `least` of them."""
        strike(0)
        moments = self.seen
        assert moments >= least
        for nth in range(1, moments + 1):
            try:
                strike(nth)
            except Exception as error:
                raise AssertionError(f"after an interrupt at moment {nth}") from error

    def _begin(self, frame: FrameType, event: str, argument: object) -> Any:
        if "/redlock_django/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._may_strike()
        return self._go_on

    def _go_on(self, frame: FrameType, event: str, argument: object) -> Any:
        last, self._last = self._last, None
        if event == "opcode":
            self._last = frame, frame.f_lasti
            if last and last[0] is frame and last[1] in _checks_of(frame.f_code):
                self._may_strike()
        return self._go_on

    def _may_strike(self) -> None:
        self.seen += 1
        if self.seen == self.wanted:
            raise KeyboardInterrupt


@cache
def _checks_of(code: CodeType) -> set[int]:
    """Return the offsets of the instructions after which Python handles signals."""
    names = ("CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")
    return {each.offset for each in dis.get_instructions(code) if each.opname.startswith(names)}


def _goes_on(links: ManualLinks, link: Link) -> None:
    """Require that the link is there, owes no reply, and that its master still answers."""
    assert links.masters[0].link is link
    assert not link.owed
    exchange = links.grant(links.ask(links.acquire("c" * 32)), 0)
    assert exchange.decided
    assert links.masters[0].link is link


@pytest.mark.parametrize("cut", [0, 20])
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_interrupt_while_replies_are_read_costs_no_link(answer: str, cut: int) -> None:
    checks = Checks()
    before, rest = ANSWERS[answer]

    def strike(nth: int) -> None:
        with manual_links(1) as links:
            link, exchange = links.link(0), links.ask(links.acquire())
            released = links.ask(links.release())
            answered: list[Any] = [Future(), Future()]
            exchange.wake, released.wake = (partial(_complete, future) for future in answered)
            data = before + _reply(links, exchange.number, rest)
            links.say(0, data[:cut])
            links.ends[0].say(data[cut:] + resp(packed([released.number, 1, 0])))
            with suppress(KeyboardInterrupt):
                checks.run(partial(links.read, links.masters[0]), nth)
            links.read(links.masters[0])
            assert exchange.decided
            assert released.decided
            assert [future.done() for future in answered] == [True, True]
            _goes_on(links, link)

    checks.everywhere(strike, least=10)


@pytest.mark.parametrize("kind", ["a round", "a release of no round"])
def test_an_interrupt_while_commands_are_sent_costs_no_link(kind: str) -> None:
    checks = Checks()

    def strike(nth: int) -> None:
        with manual_links(1) as links:
            link, master = links.link(0), links.masters[0]
            work: Callable[[], object] = partial(links.ask, links.acquire())
            if kind != "a round":
                work = partial(links.sender.write_release, master, links.release())
            with suppress(KeyboardInterrupt):
                checks.run(work, nth)
            links.ask(links.release())
            for said in links.ends[0].heard():
                fences = 1 if NAMES[said[1]] == "acquire" else 0
                links.reply(0, int(said[3 + int(said[2])]), fences=fences)
            _goes_on(links, link)

    checks.everywhere(strike, least=10)


def test_a_real_signal_while_replies_are_read_costs_no_link() -> None:
    armed, struck = False, 0

    def strike(*_: object) -> None:
        nonlocal armed, struck
        if armed:
            armed, struck = False, struck + 1
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        with manual_links(1) as links:
            link = links.link(0)
            for number in range(3_000):
                exchange = links.ask(links.acquire())
                reply = _reply(links, exchange.number, GRANT)
                links.ends[0].say((PUSH if number % 2 else b"") + reply)
                with suppress(KeyboardInterrupt):
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, 1e-6 * (number % 40 + 1))
                    links.read(links.masters[0])
                    armed = False
                links.read(links.masters[0])
            armed = False
            assert struck > 100
            _goes_on(links, link)
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_at_every_line_of_losing_a_link_the_next_round_does_the_rest() -> None:
    """Its rounds fail, its releases are kept, and a thread connects to the master again."""
    lines = Lines()
    started: list[threading.Thread] = []

    def strike(wanted: tuple[tuple[str, int], int] | None) -> bool:
        started.clear()
        with manual_links(1, dial=DIAL) as links:
            exchange = links.ask(links.acquire())
            links.ask(links.release())
            links.ends[0].hang_up()
            with suppress(KeyboardInterrupt):
                lines.run(partial(links.read, links.masters[0]), wanted)
            after = links.ask(links.acquire("b" * 32))
            assert exchange.decided
            assert after.decided
            return TOKEN in links.masters[0].pending_releases and bool(started)

    start = patch.object(threading.Thread, "start", lambda dialer: started.append(dialer))
    with start:
        _strike_everywhere(strike, lines, least=20)


@pytest.mark.parametrize("end", [Sockets.shut, Sockets.abandon])
def test_links_that_end_close_a_link_whose_loss_was_interrupted(
    end: Callable[[Sockets], None], single: ManualLinks
) -> None:
    interrupted = patch.object(LinkSocket, "close", side_effect=KeyboardInterrupt)
    with interrupted, pytest.raises(KeyboardInterrupt):
        single.cut(single.masters[0], "lost")
    end(single.sockets)
    assert single.ends[0].is_closed_by_the_other()


def test_a_check_that_was_interrupted_is_made_again(single: ManualLinks) -> None:
    interrupted = patch.object(Sender, "write", side_effect=KeyboardInterrupt)
    with interrupted, pytest.raises(KeyboardInterrupt):
        single.sender.check(single.masters[0], "join")
    single.sender.check(single.masters[0], "join")
    single.sockets.flush()
    assert single.ends[0].names() == ["join"]


def _honestly(links: ManualLinks) -> list[bytes]:
    """Answer what all masters hear; the clock of master 0 has stepped.

    Return the modes in which its trust was checked.
    """
    modes = []
    links.changes.retry()
    links.sockets.flush()
    for master, ends in zip(links.masters, links.ends, strict=True):
        ahead = 0.0 if master.index else 30.0
        if master.link is None:
            ends = links.join(master.index, ahead=ahead)
            links.sockets.flush()
        for said in ends.heard():
            name = NAMES[said[1]]
            if master.link is None:
                break  # an answer was lost by the interrupt
            if name == "join":
                modes += [] if master.index else [said[-1]]
                links.trusted(master.index, ahead=ahead)
            else:
                fences = 1 if name == "acquire" else 0
                links.reply(master.index, int(said[3 + int(said[2])]), ahead=ahead, fences=fences)
    return modes


@pytest.mark.parametrize("part", ["noticed", "decided", "marked"])
def test_at_every_line_a_step_is_marked_before_its_master_votes_again(part: str) -> None:
    lines = Lines()

    def strike(wanted: tuple[tuple[str, int], int] | None) -> bool:
        with manual_links(3) as links:
            exchange = links.ask(links.acquire())
            parts = {
                "noticed": partial(links.reply, 0, exchange.number, ahead=30.0),
                "decided": partial(links.trusted, 2),
                "marked": partial(links.trusted, 0, ahead=30.0),
            }
            for name, answer in parts.items():
                if name == part:
                    break
                answer()
                if name == "noticed":
                    for index in (1, 2):
                        links.reply(index, exchange.number)
                    links.trusted(0, ahead=30.0)
                    links.trusted(1)
            modes = [said[-1] for said in links.ends[0].heard() if NAMES[said[1]] == "join"]
            with suppress(KeyboardInterrupt):
                lines.run(answer, wanted)
            for number in range(4):
                links.ask(links.release(f"{number}" * 32))  # also to a master that is suspected
                exchange = links.ask(links.acquire(f"{number}" * 32))
                marked = b"distrust" in modes
                modes += _honestly(links)
                vote = exchange.tally.votes[0]
                assert marked or vote is None or vote.ballot is not Ballot.GRANTED
            return b"distrust" in modes and not links.masters[0].doubt(links.time())

    _strike_everywhere(strike, lines, least=10)
