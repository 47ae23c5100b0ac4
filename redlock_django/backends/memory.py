"""Masters in this process: the whole protocol without a server, for tests.

`MemoryMaster` answers the scripts of `engine/lua` as a server would, from a clock that can
be set. The simulator of the test suite drives the same class.
"""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from redlock_django.backends.base import BaseBackend
from redlock_django.engine import rounds
from redlock_django.engine.commands import (
    ABSENT,
    BURIED,
    CORRUPT,
    FENCE_AHEAD,
    GRANTED,
    NOT_READY,
    REFUSED,
    RESERVED,
    Command,
    Deployment,
)
from redlock_django.engine.quorum import NOT_ASKED, failed
from redlock_django.engine.rounds import Protocol, Result, Round, ended
from redlock_django.engine.validity import Lease, LeaseState
from redlock_django.wire.bell import Bell
from redlock_django.wire.clock import clock, wall_ns
from redlock_django.wire.survey import Answer, Health, Say, Survey
from redlock_django.wire.waiters import Waiter, Waiters

Argument = str | int | bytes
Reply = list[int | bytes]

TURN, LINGER = 100_000, 3000  # µs, ms: as in queue.lua

_FENCE = re.compile(rb"\d{1,16}")
_OURS = re.compile(rb"[0-9a-fA-F]{32} \{")
_MARKER = re.compile(rb"([0-9a-fA-F]+) (\d+) (\S+)")


def encoded(argv: Sequence[Argument]) -> list[bytes]:
    """ARGV as a server is given it."""
    return [part if isinstance(part, bytes) else str(part).encode() for part in argv]


class MemoryMaster:
    """One master's memory. `time` gives its clock in µs; `run_id` names one life of it."""

    def __init__(self, time: Callable[[], int] = lambda: wall_ns() // 1000) -> None:
        self.time = time
        self.run_id = secrets.token_hex(20)
        self.strings: dict[str, tuple[bytes, float]] = {}  # key -> value, expiry in ms
        self.sets: dict[str, dict[bytes, float]] = {}
        self.ends: dict[str, float] = {}  # the expiry of a set, in ms, if it has one
        # How many hear what is said on a channel.
        self.publish: Callable[[str, bytes], int] = lambda channel, name: 0
        self.forked()

    def forked(self) -> None:
        """Begin with no script running: the thread that ran one has stayed in the parent."""
        self.alone = threading.RLock()  # a script runs alone on its server
        self._ms = 0  # the moment of the script that runs: for it no time passes

    def say(self, command: Command, number: int, marker: bytes = b"", ready_at: int = 0) -> Reply:
        """The reply to a command, as the wire would bring it."""
        argv: list[Argument] = [number, *command.arguments()]
        if command.trusted:
            argv += [marker, ready_at]
        return self.eval(command.name, list(command.keys()), argv)

    def eval(self, script: str, keys: list[str], argv: list[Argument]) -> Reply:
        """What the script of that name replies to these KEYS and ARGV."""
        return self.run(script, keys, encoded(argv))

    def run(self, script: str, keys: list[str], argv: list[bytes]) -> Reply:
        """The same, with the ARGV as bytes."""
        body: Callable[[int, list[str], list[bytes]], Reply] = getattr(self, f"_{script}")
        with self.alone:
            now = self.time()
            self._ms = now // 1000
            try:
                return [int(argv[0]), *body(now, keys, argv)]
            finally:
                self._ms = 0

    def _moment(self) -> int:
        """Now, in ms; for a script, when it began."""
        return self._ms or self.time() // 1000

    # The few commands of a server that the scripts use.

    def get(self, key: str) -> bytes | None:
        """The value of a string, None where it is absent or has expired."""
        stored = self.strings.get(key)
        if stored is None:
            return None
        value, expiry = stored
        if self._moment() > expiry:
            del self.strings[key]
            return None
        return value

    def set(self, key: str, value: bytes, px: float = math.inf) -> None:
        """Store a string for `px` ms, whatever was there before."""
        self.sets.pop(key, None)
        self.ends.pop(key, None)
        self.strings[key] = (value, self._moment() + px)

    def pttl(self, key: str) -> int:
        """Milliseconds a string still lives, -1 for ever, -2 where there is none."""
        if self.get(key) is None:
            return -2
        expiry = self.strings[key][1]
        return -1 if expiry == math.inf else int(expiry - self._moment())

    def queue(self, key: str) -> dict[bytes, float]:
        """A sorted set; empty where it is absent, has expired or is something else."""
        end = self.ends.get(key)
        if end is not None and self._moment() > end:
            del self.sets[key], self.ends[key]
        return self.sets.get(key, {})

    def _ready(self, keys: list[str], argv: list[bytes], now: int) -> bool:
        return self.get(keys[0]) == argv[-2] and now >= int(argv[-1])

    def _index(self, key: str, member: bytes, expiry: float, *, new_only: bool = False) -> None:
        if self.get(key) is not None:
            return  # another type: the index only shows what is held, and costs no lock
        index = self.sets.setdefault(key, {})
        if not (new_only and member in index):
            index[member] = expiry

    def _take(
        self,
        keys: list[str],
        pairs: list[tuple[str, str]],
        resources: list[bytes],
        fences: list[int],
        fence_ttl: int,
        value: bytes,
        ttl: int,
    ) -> bool:
        """Raise the fences, set the locks; False if a key of another type is in the way."""
        done: list[tuple[str, bytes]] = []
        for (key, fence_key), resource, fence in zip(pairs, resources, fences, strict=True):
            self.set(fence_key, b"%d" % fence, fence_ttl)
            if self.get(key) is None:
                if key in self.sets:
                    for earlier, listed in done:
                        del self.strings[earlier]
                        self.sets.get(keys[1], {}).pop(listed, None)
                    return False
                self.set(key, value, ttl)
                done.append((key, resource))
            self._index(keys[1], resource, self._ms + ttl)
        return True

    def _refuse(self, now: int, index: int, key: str, lock: bytes, fence: int = 0) -> Reply:
        return [REFUSED, now, index, self.pttl(key), fence, lock[:32]]

    # The scripts, line by line as in engine/lua.

    def _call_first(
        self, key: str, now: int, waiter: bytes = b"", ticket: float = math.inf
    ) -> tuple[bytes, float] | None:
        for _ in range(1000):
            queue = self.queue(key)
            name = min(queue, key=lambda name: (queue[name], name), default=waiter)
            score = queue.get(name, 0.0)
            if name == waiter or (score >= 0 and (ticket, waiter) < (score, name)):
                return None
            if score < 0 and now < -score:
                return name, -score - now
            channel, blank, _number = name.rpartition(b" ")
            if score >= 0 and blank and self.publish(channel.decode(), name):
                queue[name] = -now - TURN
                return name, TURN
            self._leave(key, name)
        return None

    def _leave(self, key: str, name: bytes) -> None:
        queue = self.queue(key)
        queue.pop(name, None)
        if not queue:
            self.sets.pop(key, None)
            self.ends.pop(key, None)

    def _stand(self, key: str, waiter: bytes, ticket: float, lasts: int) -> int:
        if not waiter or self.get(key) is not None:
            return -1
        self.queue(key)
        queue = self.sets.setdefault(key, {})
        queue[waiter] = ticket
        self.ends[key] = self._ms + lasts + LINGER
        return sorted(queue, key=lambda name: (queue[name], name)).index(waiter)

    def _acquire(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        value = argv[1]
        ttl, proposal, skew, fence_ttl, max_ttl = map(int, argv[2:7])
        number, _, waiter = argv[7].partition(b" ")
        age = proposal - int(number or 0)
        if not self._ready(keys, argv, now):
            return [NOT_READY, now]
        if self.get(keys[2]) is not None:
            return [BURIED, now]
        proposal = min(max(proposal, now - skew), now + skew)
        ticket = proposal - age if waiter else math.inf
        count = (len(keys) - 3) // 3
        pairs, queues = list(zip(keys[3:-count:2], keys[4:-count:2], strict=True)), keys[-count:]
        fences = []
        for index, (key, fence_key) in enumerate(pairs, 1):
            queue = queues[index - 1]
            lock, fence = self.get(key), self.get(fence_key)
            if fence is not None and not _FENCE.fullmatch(fence):
                return [CORRUPT, now]
            stored = _number(fence)
            if lock is not None and lock != value:
                left = self.pttl(key)
                if left > max_ttl and _OURS.match(lock):
                    left = max_ttl
                    self.strings[key] = (lock, now // 1000 + left)
                expiry = math.inf if left < 0 else now // 1000 + left
                self._index(keys[1], argv[7 + index], expiry, new_only=True)
                ahead = self._stand(queue, waiter, ticket, max_ttl if left < 0 else left)
                self._pass_on(pairs, queues, index, waiter, now)
                return [*self._refuse(now, index, key, lock, stored), ahead]
            if lock is None:
                first = self._call_first(queue, now, waiter, ticket)
                if first is not None:
                    name, us = first
                    left = math.ceil(us / 1000)
                    ahead = self._stand(queue, waiter, ticket, left)
                    self._pass_on(pairs, queues, index, waiter, now)
                    return [RESERVED, now, index, left, stored, name, ahead]
            if lock is None or fence is None:
                stored = max(stored + 1, proposal)
            if stored > now + 2 * skew:
                return [FENCE_AHEAD, now]
            fences.append(stored)
        if self.get(keys[1]) is not None:
            return [CORRUPT, now]
        self._trim(keys[1], now // 1000)
        if not self._take(keys, pairs, argv[8:-2], fences, fence_ttl, value, ttl):
            return [CORRUPT, now]
        for queue in queues:
            self._leave(queue, waiter)
        return [GRANTED, now, *fences]

    def _pass_on(
        self,
        pairs: list[tuple[str, str]],
        queues: list[str],
        index: int,
        waiter: bytes,
        now: int,
    ) -> None:
        for behind, ((key, _), queue) in enumerate(zip(pairs, queues, strict=True), 1):
            if behind != index and waiter in self.queue(queue):
                self._leave(queue, waiter)
                if self.get(key) is None:
                    self._call_first(queue, now)

    def _trim(self, key: str, now_ms: int, most: int = 16) -> None:
        index = self.sets.get(key, {})
        stale = sorted((m for m, e in index.items() if e < now_ms), key=index.__getitem__)
        for member in stale[:most]:
            del index[member]

    def _confirm(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        if not self._ready(keys, argv, now):
            return [NOT_READY, now]
        fences = []
        pairs = list(zip(keys[1::2], keys[2::2], argv[4:-2], strict=True))
        for index, (key, fence_key, wanted) in enumerate(pairs, 1):
            lock, fence = self.get(key), self.get(fence_key)
            if lock is None:
                return [ABSENT, now, index]
            if lock != argv[1]:
                return self._refuse(now, index, key, lock)
            if fence is not None and not _FENCE.fullmatch(fence):
                return [CORRUPT, now]
            fences.append(max(_number(fence), int(wanted)))
            if fences[-1] > now + 2 * int(argv[2]):
                return [FENCE_AHEAD, now]
        for (_, fence_key, _), raised in zip(pairs, fences, strict=True):
            self.set(fence_key, b"%d" % raised, int(argv[3]))
        return [GRANTED, now, *fences]

    def _extend(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        if not self._ready(keys, argv, now):
            return [NOT_READY, now]
        value, ttl, absent = argv[1], int(argv[2]), 0
        for index, key in enumerate(keys[2:], 1):
            lock = self.get(key)
            if lock is not None and lock != value:
                return self._refuse(now, index, key, lock)
            if lock is None and not absent:
                absent = index
        if absent:
            return [ABSENT, now, absent]
        for key, resource in zip(keys[2:], argv[3:-2], strict=True):
            if self.pttl(key) < ttl:
                self.set(key, value, ttl)
                self._index(keys[1], resource, now // 1000 + ttl)
        return [GRANTED, now]

    def _heal(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        if not self._ready(keys, argv, now):
            return [NOT_READY, now]
        if self.get(keys[2]) is not None:
            return [BURIED, now]
        value = argv[1]
        ttl, skew, fence_ttl = map(int, argv[2:5])
        count = (len(keys) - 3) // 2
        resources, wanted = argv[5 : 5 + count], argv[5 + count : -2]
        pairs = list(zip(keys[3::2], keys[4::2], strict=True))
        fences = []
        for index, (key, fence_key) in enumerate(pairs, 1):
            lock, fence = self.get(key), self.get(fence_key)
            if lock is not None and lock != value:
                return self._refuse(now, index, key, lock)
            if fence is not None and not _FENCE.fullmatch(fence):
                return [CORRUPT, now]
            fences.append(max(_number(fence), int(wanted[index - 1])))
            if fences[-1] > now + 2 * skew:
                return [FENCE_AHEAD, now]
        if not self._take(keys, pairs, resources, fences, fence_ttl, value, ttl):
            return [CORRUPT, now]
        return [GRANTED, now, *fences]

    def _release(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        waiter, count = argv[3], len(argv) - 4
        fault, other_key = 0, ""
        other: bytes | None = None
        locks, queues = keys[2 : 2 + count], keys[2 + count :]
        for index, key in enumerate(locks, 1):
            lock = self.get(key)
            free = lock in (None, argv[1])
            if lock == argv[1]:
                del self.strings[key]
            elif not fault:
                fault, other, other_key = index, lock, key
            if free:
                self.sets.get(keys[0], {}).pop(argv[3 + index], None)
            if queues:
                self._leave(queues[index - 1], waiter)
                if free:
                    self._call_first(queues[index - 1], now)
        if argv[2] != b"0":
            self.set(keys[1], b"1", int(argv[2]))
        if not fault:
            return [GRANTED, now]
        if other is not None:
            return self._refuse(now, fault, other_key, other)
        return [ABSENT, now, fault]

    def _join(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        run, fingerprint, delay, how = argv[1], argv[2], int(argv[3]), argv[4]
        seen = self.get(keys[0]) or b""
        match = _MARKER.fullmatch(seen)
        why = b""
        if match is None:
            why = b"fresh"
        elif match[3] != fingerprint and how != b"reconfigure":
            return [-6, now, int(match[2]), seen, match[3]]
        elif match[1] != run:
            why = b"restarted"
        elif how == b"distrust":
            why = b"stepped"
        elif how == b"join" and int(match[2]) <= now + delay:
            return [1, now, int(match[2]), seen, b""]
        ready = now if how == b"trust" else now + delay
        marker = b"%s %d %s" % (run, ready, fingerprint)
        self.set(keys[0], marker)
        return [2, now, ready, marker, why]

    # What people ask.

    def _held(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        self._trim(keys[0], now // 1000, 100)
        held = self._still(keys[0], now // 1000)
        order = sorted(held, key=lambda member: (held[member], member), reverse=argv[2] == b"1")
        reply: Reply = [GRANTED, now, len(held)]
        for member in order[: int(argv[1])]:
            reply += [member, _left(held[member], now // 1000)]
        return reply

    def _find(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        held = self._still(keys[0], now // 1000)
        reply: Reply = [GRANTED, now, b"0"]
        for member in sorted(held):
            if _matches(member, argv[2]):
                reply += [member, _left(held[member], now // 1000)]
        return reply

    def _look(self, now: int, keys: list[str], argv: list[bytes]) -> list[Any]:
        reply: list[Any] = [GRANTED, now]
        for key in keys:
            reply += [self.get(key), self.pttl(key)]
        return reply

    def _scan(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        kept = {key for key in list(self.strings) if self.get(key) is not None}
        kept |= {key for key, members in self.sets.items() if members}
        names = (key.encode() for key in sorted(kept))
        return [GRANTED, now, b"0", *(name for name in names if _matches(name, argv[2]))]

    def _still(self, key: str, now_ms: int) -> dict[bytes, float]:
        return {m: expiry for m, expiry in self.sets.get(key, {}).items() if expiry >= now_ms}


def _left(expiry: float, now_ms: int) -> int:
    return -1 if expiry == math.inf else int(expiry - now_ms)


def _matches(name: bytes, pattern: bytes) -> bool:
    """Whether a glob pattern of a server's matches; a backslash makes a character plain."""
    parts = re.findall(rb"\\.|.", pattern, re.DOTALL)
    plain = {b"*": b".*", b"?": b"."}
    regex = b"".join(plain.get(part) or re.escape(part[-1:]) for part in parts)
    return re.fullmatch(regex, name, re.DOTALL) is not None


def _number(fence: bytes | None) -> int:
    return int(float(fence or 0))  # a double, as in Lua


class MemoryBackend(BaseBackend):
    """Redlock over masters in this process: for tests, never for production.

    `advance()` lets time pass. To own the time altogether, replace `now`, the clock of the
    backend, and `time` (µs), that of its masters; and `sleep` to own the waiting. Masters are
    hurt by their place, 0 for the first; `down[place]` is why one does not answer, "" if it does.
    """

    passed: ClassVar[float] = 0.0  # seconds: time passes for all backends alike

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        if not self.deployment.names:
            self.deployment = Deployment(
                names=("memory",),
                prefix=self.deployment.prefix,
                max_ttl=self.deployment.max_ttl,
                max_clock_skew=self.deployment.max_clock_skew,
                restart_delay=0,
                fence_ttl=self.deployment.fence_ttl,
            )
        self.now: Callable[[], float] = lambda: clock() + self.passed
        self.time: Callable[[], int] = lambda: wall_ns() // 1000 + round(self.passed * 1_000_000)
        self.sleep: Callable[[float], None] = time.sleep
        self.waiters = Waiters(self.deployment)
        self.masters: list[MemoryMaster] = []
        self.down: list[Any] = []  # a reason, or just True
        self._markers: list[tuple[bytes, int]] = []  # as we know them: the text, and ready-at in µs
        self.clear()

    def clear(self) -> None:
        """Forget every lock and bring every master up: a fresh start for a test."""
        many = self.deployment.masters
        self.masters[:] = [MemoryMaster(lambda: self.time()) for _ in range(many)]
        self.down[:] = [""] * many
        self._markers[:] = [(b"trusted", 0)] * many
        for index, master in enumerate(self.masters):
            master.set(self.deployment.marker, b"trusted")
            master.publish = partial(self._publish, index)

    def _publish(self, index: int, channel: str, name: bytes) -> bool:
        return channel == self.waiters.channel and self.waiters.call(name, index)

    def share(self, other: MemoryBackend) -> None:
        """Stand on the masters of another alias, as two aliases with the same MASTERS do."""
        self.masters, self.down, self._markers = other.masters, other.down, other._markers
        self.waiters = other.waiters

    # What may happen to time and to masters.

    @staticmethod
    def advance(seconds: float) -> None:
        """Let time pass for every backend in memory, and nobody renew anything meanwhile."""
        MemoryBackend.passed += seconds

    def refuse(self, index: int) -> None:
        """Let a master be gone: it refuses every connection."""
        self._fail(index, "refused the connection")

    def hang(self, index: int) -> None:
        """Let a master hang: it answers nothing."""
        self._fail(index, f"did not answer within {self.master_timeout:g} s")

    def restore(self, index: int) -> None:
        """Let a master that was gone or hung answer again, with all that it knew."""
        self.down[index] = ""
        self.notice(self.deployment.names[index], True, self._doubt(index))

    def restart(self, index: int) -> None:
        """Start a master anew and empty: it answers, and is not counted for RESTART_DELAY."""
        self.masters[index].run_id = secrets.token_hex(20)
        self.forget(index)
        self.restore(index)

    def forget(self, index: int) -> None:
        """Empty a master, as FLUSHALL does: it is not counted for RESTART_DELAY."""
        master = self.masters[index]
        master.strings.clear()
        master.sets.clear()
        delay = round(self.deployment.restart_delay * 1_000_000)
        argv: list[Argument] = [0, master.run_id, self.deployment.fingerprint, delay, "join"]
        _, _, _, ready_at, marker, _ = master.eval("join", [self.deployment.marker], argv)
        self._markers[index] = (bytes(marker), int(ready_at))

    def step_clock(self, index: int, seconds: float) -> None:
        """Set the clock of one master forward or back; beyond MAX_CLOCK_SKEW it is not counted."""
        before = self.masters[index].time
        self.masters[index].time = lambda: before() + round(seconds * 1_000_000)

    def _fail(self, index: int, reason: str) -> None:
        self.down[index] = reason
        self.notice(self.deployment.names[index], False, reason)

    def _ready_in(self, index: int) -> float:
        return max(0.0, (self._markers[index][1] - self.masters[index].time()) / 1_000_000)

    def _doubt(self, index: int) -> str:
        left = self._ready_in(index)
        return f"fresh or flushed: trusted in {max(left, 1):.0f} s" if left else ""

    def clock(self) -> float:
        return self.now()

    def forked(self) -> None:
        for master in self.masters:
            master.forked()

    def acquire(self, resources: tuple[str, ...], ttl: float, wait: float, holder: str) -> Lease:
        waiter = self.waiters.new() if wait > 0 else None
        return self._run(self._acquire(resources, ttl, wait, holder, waiter), waiter)

    async def aacquire(
        self, resources: tuple[str, ...], ttl: float, wait: float, holder: str
    ) -> Lease:
        waiter = self.waiters.new() if wait > 0 else None
        return await self._arun(self._acquire(resources, ttl, wait, holder, waiter), waiter)

    def extend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        return self._run(rounds.extend(self.deployment, lease, ttl, now=self.clock()))

    async def aextend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        return self.extend(lease, ttl)

    def release(self, lease: Lease) -> bool | None:
        return self._run(rounds.release(self.deployment, lease))

    async def arelease(self, lease: Lease) -> bool | None:
        return self.release(lease)

    def post_release(self, lease: Lease) -> None:
        self.release(lease)

    def survey(self, *others: MemoryBackend) -> Survey:
        return _MemorySurvey((self, *others))

    def _run(self, protocol: Protocol[Result], waiter: Waiter | None = None) -> Result:
        try:
            step = next(protocol)
        except StopIteration as done:  # there was nothing to ask: an extension that came too late
            untold: Result = done.value
            return untold
        while True:
            try:
                if isinstance(step, Round):
                    self._answer(step, waiter)
                elif waiter is None or self.sleep is not time.sleep:
                    self.sleep(step.seconds)
                else:
                    self._nap(waiter, step.seconds)
                step = protocol.send(self.clock())
            except StopIteration as done:
                result: Result = done.value
                return result
            except BaseException as error:
                if ended(protocol):
                    raise
                step = protocol.throw(error)

    async def _arun(self, protocol: Protocol[Result], waiter: Waiter | None = None) -> Result:
        try:
            step = next(protocol)
        except StopIteration as done:  # there was nothing to ask: an extension that came too late
            untold: Result = done.value
            return untold
        while True:
            try:
                if isinstance(step, Round):
                    self._answer(step, waiter)
                elif waiter is None:
                    await asyncio.sleep(step.seconds)
                else:
                    await self._anap(waiter, step.seconds)
                step = protocol.send(self.clock())
            except StopIteration as done:
                result: Result = done.value
                return result
            except BaseException as error:
                if ended(protocol):
                    raise
                step = protocol.throw(error)

    def _nap(self, waiter: Waiter, seconds: float) -> None:
        bell = Bell()
        waiter.wake = bell.ring
        if not waiter.decided:
            bell.wait(seconds)

    async def _anap(self, waiter: Waiter, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        called = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(called.set)

        waiter.wake = wake
        if not waiter.decided:
            with suppress(TimeoutError):
                await asyncio.wait_for(called.wait(), seconds)

    def _answer(self, asked: Round, waiter: Waiter | None = None) -> None:
        if waiter is not None and asked.awaited:
            waiter.ask()
        for index, command in enumerate(asked.commands):
            if command is None:
                vote = NOT_ASKED
            elif down := self.down[index]:
                vote = failed(_why(down), sent=False)
            elif command.trusted and (doubt := self._doubt(index)):
                vote = failed(doubt, sent=False)
            else:
                reply = self.masters[index].say(command, 0, *self._markers[index])
                vote = command.vote(reply[1:])
            asked.tally.cast(index, vote)


class _MemorySurvey(Survey):
    """A look at the masters of this process."""

    def __init__(self, backends: Sequence[MemoryBackend]) -> None:
        super().__init__((), backends[0].deployment, 0.0)
        self._every = [
            (backend, own) for backend in backends for own in range(backend.deployment.masters)
        ]

    def ask(self, what: Callable[[Say], Answer], within: float | None = None) -> dict[int, Answer]:
        return {index: what(_sayer(backend.masters[own])) for index, backend, own in self._up()}

    def health(self) -> dict[int, Health]:
        return {
            index: Health(
                run_id=backend.masters[own].run_id,
                latency=0.0,
                offset=backend.masters[own].time() / 1e6 - wall_ns() / 1e9 - backend.passed,
                server="memory",
                version="",
                uptime=0.0,
                policy="noeviction",
                maxmemory=0,
                persistent=False,
                held=len(backend.masters[own].sets.get(self.deployment.held, ())),
                ready_in=backend._ready_in(own),
                deployment=self.deployment.fingerprint,
                forbidden=(),
                faults=(),
            )
            for index, backend, own in self._up()
        }

    def _up(self) -> list[tuple[int, MemoryBackend, int]]:
        for index, (backend, own) in enumerate(self._every):
            if down := backend.down[own]:
                self.silent[index] = _why(down)
        return [(index, *one) for index, one in enumerate(self._every) if index not in self.silent]


def _why(down: object) -> str:
    return down if isinstance(down, str) else "down"


def _sayer(master: MemoryMaster) -> Say:
    def say(name: str, keys: Sequence[str], argv: Sequence[Argument]) -> list[Any]:
        return list(master.eval(name, list(keys), [0, *argv]))[1:]

    return say
