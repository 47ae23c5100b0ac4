"""Takers of one ticket that are far from each other, each of them nearer to another master."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Any

import pytest

from redlock_django.backends.redis.backend import retry_delay
from redlock_django.engine.attempt import Client
from redlock_django.engine.errors import RedlockError
from redlock_django.engine.quorum import PENDING
from redlock_django.engine.steps import Pause, Protocol, Round, Step
from redlock_django.engine.validity import RedlockLease
from tests.engine.masters import MARKER, Masters, fresh
from tests.engine.test_hand_on_rounds import given, taking

FAR = 0.15  # seconds to the other masters and back


class Takers:
    """Takers that begin at about the same moment, and the messages between them and the masters."""

    def __init__(self, masters: Masters, seed: int) -> None:
        self.masters = masters
        self.random = Random(seed)
        self.held: list[RedlockLease] = []
        self.ended = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order: Iterator[int] = count()

    def run(self, many: int) -> None:
        """Run so many takers of one ticket until each holds the lock or has given up."""
        masters = self.masters
        client = Client(
            masters.deployment, fresh(), iter(lambda: 1, None),
            lambda tries: retry_delay(tries, self.random.uniform), 0.5,
        )  # fmt: skip
        handed = given(masters)
        for taker in range(many):

            def begin(taker: int = taker) -> None:
                protocol = taking(masters, handed, 20.0, by=client)
                self._do(taker, protocol, next(protocol))

            self._after(self.random.uniform(0, 0.02), begin)
        while self._events:
            masters.now, _, happen = heapq.heappop(self._events)
            happen()
        assert self.ended == many

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        event = self.masters.now + seconds, next(self._order), happen
        heapq.heappush(self._events, event)

    def _do(self, taker: int, taking: Protocol[RedlockLease], step: Step) -> None:
        if isinstance(step, Pause):
            self._after(step.seconds, lambda: self._go_on(taker, taking))
            return
        for master, command in enumerate(step.commands):
            if command is not None:
                self._send(taker, taking, step, master)
        if not step.awaited:
            self._go_on(taker, taking)

    def _send(self, taker: int, taking: Protocol[RedlockLease], step: Round, master: int) -> None:
        is_near = taker % len(self.masters.memories) == master
        way = 0.0005 if is_near else FAR / 2 * self.random.uniform(0.9, 1.1)
        command: Any = step.commands[master]

        def arrive() -> None:
            reply = self.masters.memories[master].say(command, 0, MARKER)
            if step.awaited:
                self._after(way, lambda: answer(reply))

        def answer(reply: Any) -> None:
            if step.tally.verdict is PENDING:
                step.tally.cast(master, command.vote(*reply[1:]))
                if step.tally.verdict is not PENDING:
                    self._go_on(taker, taking)

        self._after(way, arrive)

    def _go_on(self, taker: int, taking: Protocol[RedlockLease]) -> None:
        try:
            step = taking.send(self.masters.now)
        except StopIteration as done:
            self.held.append(done.value)
        except RedlockError:
            pass
        else:
            self._do(taker, taking, step)
            return
        self.ended += 1


@pytest.mark.parametrize("many", [2, 3, 5])
@pytest.mark.parametrize("masters", [3, 5])
def test_exactly_one_of_distant_takers_holds_the_lock(masters: int, many: int) -> None:
    for seed in range(40):
        deployed = Masters(masters)
        takers = Takers(deployed, seed)
        takers.run(many)
        assert len(takers.held) == 1, f"seed {seed}: {len(takers.held)} takers hold it"
        assert deployed.tokens().count(takers.held[0].token) > masters // 2
