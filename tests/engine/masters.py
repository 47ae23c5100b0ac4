"""Masters that a test drives step by step: it decides which of them hear a round and answer."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import pytest

from redlock_django.backends.memory.master import MemoryMaster
from redlock_django.engine import rounds
from redlock_django.engine.attempt import Client
from redlock_django.engine.protocol.commands import Acquire, Command
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.votes import Vote, failed
from redlock_django.engine.slot_choice import ReleasedSlots
from redlock_django.engine.steps import Pause, Protocol, Result, Round, Step
from redlock_django.engine.validity import LeaseState, RedlockLease
from tests.replies import unpacked

START = 1_760_000_000.0
MARKER = b"trusted"
Extended = tuple[LeaseState, RedlockLease]


class Masters:
    """N masters with one clock, and a client whose clock is the same."""

    def __init__(self, masters: int = 3, **deployment: Any) -> None:
        names = tuple(f"m{index}" for index in range(masters))
        self.deployment = Deployment(names=names, **deployment)
        self.now = START
        self.wall = 0.0  # seconds by which the wall clocks of all clients are wrong
        self.off = [0.0] * masters  # seconds by which each master's clock is wrong
        self.gone: set[str] = set()  # the channels without a subscriber
        self.called: list[tuple[int, str]] = []  # which master called which waiter
        self.watching: list[tuple[int, str]] = []  # and which it asked to watch that turn
        self.released = ReleasedSlots()  # by the process of all clients
        self.waiters: dict[str, Waiter] = {}  # by name
        self.memories = [self._memory(index) for index in range(masters)]

    def _memory(self, index: int) -> MemoryMaster:
        memory = MemoryMaster(lambda: int((self.now + self.off[index]) * 1_000_000))
        memory.keyspace.set(self.deployment.marker, MARKER)
        memory.keyspace.publish = partial(self._publish, index)
        return memory

    def _publish(self, index: int, channel: str, name: bytes) -> int:
        if channel in self.gone:
            return 0
        calls = self.watching if name.startswith(b" ") else self.called
        calls.append((index, name.decode().strip()))
        return 1

    def forget(self, index: int) -> None:
        """Make a master come back empty and still be trusted."""
        self.memories[index] = self._memory(index)

    def hear(
        self,
        step: Step,
        *,
        deaf: Collection[int] = (),
        mute: Collection[int] = (),
        down: Collection[int] = (),
        silent: Collection[int] = (),
    ) -> Round:
        """Carry out a round and cast the votes; return it.

        `deaf` masters never receive it, and the replies of `mute` masters are lost. Nothing was
        ever sent to `down` masters. The votes of `silent` masters are still outstanding.
        """
        round_ = asked(step)
        for index, command in enumerate(round_.commands):
            if index in silent:
                continue
            if command is None or index in down:
                vote = failed("not asked", sent=False)
            elif index in deaf:
                vote = failed("did not answer")
            else:
                vote = self.vote(command, index)
                vote = failed("did not answer") if index in mute else vote
            round_.tally.cast(index, vote)
        return round_

    def hear_at(self, step: Step, index: int, *, down: bool = False) -> None:
        """Carry out a round at one master, and cast its vote; a master that is down gives none."""
        others = [other for other in range(len(self.memories)) if other != index]
        self.hear(step, silent=others, down=[index] if down else ())

    def carry(self, protocol: Protocol[Result], step: Step, **how: Collection[int]) -> Result:
        """Drive a protocol from one of its steps to its end; return its result."""
        try:
            while True:
                if isinstance(step, Pause):
                    self.now += step.seconds
                else:
                    self.hear(step, **how)
                step = protocol.send(self.now)
        except StopIteration as done:
            result: Result = done.value
            return result

    def after_undo(self, protocol: Protocol[Any]) -> Step:
        """Resume a protocol after a round that was lost; return its step after the undo, if any."""
        step = protocol.send(self.now)
        if isinstance(step, Round) and not step.awaited:
            self.hear(step)
            step = protocol.send(self.now)
        return step

    def end(self, protocol: Protocol[Result]) -> Result:
        """Resume a protocol, which must end; return its result."""
        with pytest.raises(StopIteration) as done:
            protocol.send(self.now)
        result: Result = done.value.value
        return result

    def run(self, protocol: Protocol[Result], **how: Collection[int]) -> Result:
        """Drive a whole protocol; return its result."""
        return self.carry(protocol, next(protocol), **how)

    def acquire(
        self,
        *resources: str,
        ttl: float = 10.0,
        wait: float = 0.0,
        overrun: float = 0.5,
        tokens: Iterator[str] | None = None,
        holder: str = "{}",
        wall: float = 0.0,
        waiter: str = "",
        limit: int = 1,
    ) -> Protocol[RedlockLease]:
        """Return the acquire protocol, with tokens that are all different."""
        caller = None
        if waiter:
            caller = self.waiters[waiter] = Waiter(waiter)
        return rounds.acquire(
            Client(
                self.deployment,
                tokens or fresh(),
                proposals=iter(lambda: int((self.now + self.wall + wall) * 1_000_000), None),
                delay=lambda attempts: 0.01,
                overrun=overrun,
                released=self.released,
            ),
            resources or ("r",),
            ttl,
            holder,
            now=self.now,
            wait=wait,
            waiter=caller,
            limit=limit,
        )

    def extend(self, lease: RedlockLease, ttl: float = 10.0) -> Protocol[Extended]:
        """Return the extend protocol."""
        return rounds.extend(self.deployment, lease, ttl, now=self.now)

    def release(self, lease: RedlockLease, **how: Any) -> Protocol[bool | None]:
        """Return the release protocol."""
        return rounds.release(self.deployment, lease, **how)

    def ask(self, token: str = "a" * 32, *resources: str, **how: Any) -> Acquire:
        """Return the command that acquires resources for 10 s, as a client asks now."""
        now = int(self.now * 1_000_000)
        value = f"{token} {{}}"
        how = {"proposal": now, "ticket": now, **how}
        return Acquire(self.deployment, resources or ("r",), value, 10.0, **how)

    def say(self, command: Command, ready_at: int = 0) -> list[Any]:
        """Send a command to the first master; return its reply without the number of the round."""
        return unpacked(self.memories[0].say(command, 0, MARKER, ready_at))

    def vote(self, command: Command, index: int = 0) -> Vote:
        """Send a command to one master; return its vote."""
        return command.vote(*self.memories[index].say(command, 0, MARKER)[1:])

    def taken(self, *resources: str, **how: Any) -> RedlockLease:
        """Acquire a lock on all masters; return its lease."""
        return self.run(self.acquire(*resources, **how))

    def tokens(self, resource: str = "r") -> list[str]:
        """Return the token of the lock on each master; "" where there is none."""
        values = (memory.keyspace.get(self.deployment.lock(resource)) for memory in self.memories)
        return [(value or b"").decode().split(" ", 1)[0] for value in values]

    def queues(self, resource: str = "r") -> list[list[str]]:
        """Return the waiters on each master, the next one first."""
        key = self.deployment.queue(resource)
        queues = [memory.keyspace.sorted_set(key) for memory in self.memories]
        return [[name.decode() for name in sorted(q, key=q.__getitem__)] for q in queues]

    def fences(self, resource: str = "r") -> list[int]:
        """Return the fence on each master."""
        return [int(m.keyspace.get(self.deployment.fence(resource)) or 0) for m in self.memories]


@dataclass
class Waiter:
    """A waiter; see `wait.WaitingCaller`."""

    name: str
    called_slot: int | None = None


class Waiting:
    """An acquire of a waiter, after one refused round."""

    def __init__(self, masters: Masters, waiter: str, *resources: str, **how: Any) -> None:
        self.masters, self.waiter = masters, waiter
        self.protocol: Protocol[RedlockLease] = masters.acquire(
            *resources, **{"wait": 60.0, "waiter": waiter, **how}
        )
        self.step: Step = next(self.protocol)
        self.refused()

    def refused(self, **how: Collection[int]) -> None:
        """Carry out one refused round, after which it pauses."""
        self.masters.hear(self.step, **how)
        self.step = self.masters.after_undo(self.protocol)
        paused(self.step)
        self.masters.now += 0.001  # so that no two tickets are the same

    def ask(self, called: int | None = None) -> None:
        """Begin the next round, as after a call, which may name a slot, or a pause."""
        self.masters.waiters[self.waiter].called_slot = called
        self.step = self.protocol.send(self.masters.now)

    def refused_again(self, **how: Collection[int]) -> None:
        """Begin and carry out the next round, which is refused."""
        self.ask()
        self.refused(**how)

    def won(self, called: int | None = None, **how: Collection[int]) -> RedlockLease:
        """Begin the next round, which wins; return the lease."""
        self.ask(called)
        self.masters.hear(self.step, **how)
        return self.masters.end(self.protocol)

    def give_up(self) -> None:
        """End the wait, and carry out the undo."""
        self.masters.hear(self.protocol.throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            self.protocol.send(self.masters.now)


def queued(masters: Masters, *waiters: str) -> tuple[RedlockLease, list[Waiting]]:
    """Return the lease of a lock, and the acquires of waiters for it, which come one by one."""
    return masters.taken(), [Waiting(masters, waiter) for waiter in waiters]


def free(masters: Masters, lease: RedlockLease, **how: Collection[int]) -> None:
    """Release a lock; `masters.called` has the calls of this release alone."""
    masters.called.clear()
    masters.run(masters.release(lease), **how)


def asked(step: Step) -> Round:
    """Return a step, which must be a round."""
    assert isinstance(step, Round)
    return step


def paused(step: Step) -> Pause:
    """Return a step, which must be a pause."""
    assert isinstance(step, Pause)
    return step


_numbers = count(1)


def fresh() -> Iterator[str]:
    """Yield tokens that were never used before."""
    while True:
        yield f"{next(_numbers):032x}"
