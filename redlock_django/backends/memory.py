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
from collections.abc import Callable
from typing import Any

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
    Command,
    Terms,
)
from redlock_django.engine.quorum import NOT_ASKED, failed
from redlock_django.engine.rounds import Pause, Protocol, Result, Round, ended
from redlock_django.engine.validity import Lease, LeaseState
from redlock_django.wire.clock import clock, wall_ns

Argument = str | int | bytes
Reply = list[int | bytes]

_FENCE = re.compile(rb"\d{1,16}")
_OURS = re.compile(rb"[0-9a-fA-F]{32} \{")
_MARKER = re.compile(rb"([0-9a-fA-F]+) (\d+) (\S+)")


class MemoryMaster:
    """One master's memory. `time` gives its clock in µs; `run_id` names one life of it."""

    def __init__(self, time: Callable[[], int] = lambda: wall_ns() // 1000) -> None:
        self.time = time
        self.run_id = secrets.token_hex(20)
        self.strings: dict[str, tuple[bytes, float]] = {}  # key -> value, expiry in ms
        self.sets: dict[str, dict[bytes, float]] = {}

    def say(self, command: Command, number: int, marker: bytes = b"", ready_at: int = 0) -> Reply:
        """The reply to a command, as the wire would bring it."""
        argv: list[Argument] = [number, *command.arguments()]
        if command.trusted:
            argv += [marker, ready_at]
        return self.eval(command.name, list(command.keys()), argv)

    def eval(self, script: str, keys: list[str], argv: list[Argument]) -> Reply:
        """What the script of that name replies to these KEYS and ARGV."""
        now = self.time()
        text = [part if isinstance(part, bytes) else str(part).encode() for part in argv]
        body: Callable[[int, list[str], list[bytes]], Reply] = getattr(self, f"_{script}")
        return [int(text[0]), *body(now, keys, text)]

    # The few commands of a server that the scripts use.

    def get(self, key: str) -> bytes | None:
        """The value of a string, None where it is absent or has expired."""
        value, expiry = self.strings.get(key, (None, 0.0))
        if value is not None and self.time() // 1000 > expiry:
            del self.strings[key]
            return None
        return value

    def set(self, key: str, value: bytes, px: float = math.inf) -> None:
        """Store a string for `px` ms, whatever was there before."""
        self.sets.pop(key, None)
        self.strings[key] = (value, self.time() // 1000 + px)

    def pttl(self, key: str) -> int:
        """Milliseconds a string still lives, -1 for ever, -2 where there is none."""
        if self.get(key) is None:
            return -2
        expiry = self.strings[key][1]
        return -1 if expiry == math.inf else int(expiry - self.time() // 1000)

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
        resources: list[bytes],
        fences: list[int],
        fence_ttl: int,
        value: bytes,
        ttl: int,
    ) -> bool:
        """Raise the fences, set the locks; False if a key of another type is in the way."""
        done: list[tuple[str, bytes]] = []
        for key, fence_key, resource, fence in zip(
            keys[3::2], keys[4::2], resources, fences, strict=True
        ):
            self.set(fence_key, b"%d" % fence, fence_ttl)
            if self.get(key) is None:
                if key in self.sets:
                    for earlier, listed in done:
                        del self.strings[earlier]
                        self.sets.get(keys[1], {}).pop(listed, None)
                    return False
                self.set(key, value, ttl)
                done.append((key, resource))
            self._index(keys[1], resource, self.time() // 1000 + ttl)
        return True

    def _refuse(self, now: int, place: int, key: str, lock: bytes, fence: int = 0) -> Reply:
        return [REFUSED, now, place, self.pttl(key), fence, lock[:32]]

    # The scripts, line by line as in engine/lua.

    def _acquire(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        value, ttl, proposal, skew, fence_ttl, max_ttl = argv[1], *map(int, argv[2:7])
        if not self._ready(keys, argv, now):
            return [NOT_READY, now]
        if self.get(keys[2]) is not None:
            return [BURIED, now]
        proposal = min(max(proposal, now - skew), now + skew)
        pairs = list(zip(keys[3::2], keys[4::2], strict=True))
        fences = []
        for place, (key, fence_key) in enumerate(pairs, 1):
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
                self._index(keys[1], argv[6 + place], expiry, new_only=True)
                return self._refuse(now, place, key, lock, stored)
            if lock is None or fence is None:
                stored = max(stored + 1, proposal)
            if stored > now + 2 * skew:
                return [FENCE_AHEAD, now]
            fences.append(stored)
        if self.get(keys[1]) is not None:
            return [CORRUPT, now]
        self._trim(keys[1], now // 1000)
        if not self._take(keys, argv[7:-2], fences, fence_ttl, value, ttl):
            return [CORRUPT, now]
        return [GRANTED, now, *fences]

    def _trim(self, key: str, now_ms: int) -> None:
        index = self.sets.get(key, {})
        for member in sorted((m for m, e in index.items() if e < now_ms), key=index.__getitem__)[
            :16
        ]:
            del index[member]

    def _confirm(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        if not self._ready(keys, argv, now):
            return [NOT_READY, now]
        fences = []
        pairs = list(zip(keys[1::2], keys[2::2], argv[4:-2], strict=True))
        for place, (key, fence_key, wanted) in enumerate(pairs, 1):
            lock, fence = self.get(key), self.get(fence_key)
            if lock is None:
                return [ABSENT, now, place]
            if lock != argv[1]:
                return self._refuse(now, place, key, lock)
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
        for place, key in enumerate(keys[2:], 1):
            lock = self.get(key)
            if lock is not None and lock != value:
                return self._refuse(now, place, key, lock)
            if lock is None and not absent:
                absent = place
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
        value, ttl, skew, fence_ttl = argv[1], *map(int, argv[2:5])
        count = (len(keys) - 3) // 2
        resources, wanted = argv[5 : 5 + count], argv[5 + count : -2]
        pairs = list(zip(keys[3::2], keys[4::2], strict=True))
        fences = []
        for place, (key, fence_key) in enumerate(pairs, 1):
            lock, fence = self.get(key), self.get(fence_key)
            if lock is not None and lock != value:
                return self._refuse(now, place, key, lock)
            if fence is not None and not _FENCE.fullmatch(fence):
                return [CORRUPT, now]
            fences.append(max(_number(fence), int(wanted[place - 1])))
            if fences[-1] > now + 2 * skew:
                return [FENCE_AHEAD, now]
        if not self._take(keys, resources, fences, fence_ttl, value, ttl):
            return [CORRUPT, now]
        return [GRANTED, now, *fences]

    def _release(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        fault, other_key = 0, ""
        other: bytes | None = None
        for place, key in enumerate(keys[2:], 1):
            lock = self.get(key)
            if lock == argv[1]:
                del self.strings[key]
                self.sets.get(keys[0], {}).pop(argv[2 + place], None)
            elif not fault:
                fault, other, other_key = place, lock, key
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


def _number(fence: bytes | None) -> int:
    return int(float(fence or 0))  # a double, as in Lua


class MemoryBackend(BaseBackend):
    """Redlock over masters in this process: for tests, never for production.

    `now` is the clock of the backend and `time` (µs) that of its masters; replace them to
    own the time, and `sleep` to own the waiting. Set `down[i]` to let master i fail.
    """

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        if not self.terms.names:
            self.terms = Terms(
                names=("memory",),
                prefix=self.terms.prefix,
                max_ttl=self.terms.max_ttl,
                max_clock_skew=self.terms.max_clock_skew,
                restart_delay=0,
                fence_ttl=self.terms.fence_ttl,
            )
        self.now: Callable[[], float] = clock
        self.time: Callable[[], int] = lambda: wall_ns() // 1000
        self.sleep: Callable[[float], None] = time.sleep
        self._turn = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget every lock and bring every master up: a fresh start for a test."""
        self.masters = [MemoryMaster(lambda: self.time()) for _ in self.terms.names]
        self.down = [False] * self.terms.masters
        for master in self.masters:
            master.set(self.terms.marker, b"trusted")

    def clock(self) -> float:
        return self.now()

    def forked(self) -> None:
        self._turn = threading.Lock()

    def acquire(self, resources: tuple[str, ...], ttl: float, wait: float, holder: str) -> Lease:
        return self._run(self._acquire(resources, ttl, wait, holder))

    async def aacquire(
        self, resources: tuple[str, ...], ttl: float, wait: float, holder: str
    ) -> Lease:
        return await self._arun(self._acquire(resources, ttl, wait, holder))

    def extend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        return self._run(rounds.extend(self.terms, lease, ttl, now=self.clock()))

    async def aextend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        return self.extend(lease, ttl)

    def release(self, lease: Lease) -> bool | None:
        return self._run(rounds.release(self.terms, lease))

    async def arelease(self, lease: Lease) -> bool | None:
        return self.release(lease)

    def hand_over(self, lease: Lease) -> None:
        self.release(lease)

    def _run(self, protocol: Protocol[Result]) -> Result:
        step = next(protocol)
        while True:
            try:
                if isinstance(step, Pause):
                    self.sleep(step.seconds)
                else:
                    self._answer(step)
                step = protocol.send(self.clock())
            except StopIteration as done:
                result: Result = done.value
                return result
            except BaseException as error:
                if ended(protocol):
                    raise
                step = protocol.throw(error)

    async def _arun(self, protocol: Protocol[Result]) -> Result:
        step = next(protocol)
        while True:
            try:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                else:
                    self._answer(step)
                step = protocol.send(self.clock())
            except StopIteration as done:
                result: Result = done.value
                return result
            except BaseException as error:
                if ended(protocol):
                    raise
                step = protocol.throw(error)

    def _answer(self, asked: Round) -> None:
        for place, command in enumerate(asked.commands):
            if command is None:
                vote = NOT_ASKED
            elif self.down[place]:
                vote = failed("is down", sent=False)
            else:
                with self._turn:  # a script runs alone on its server
                    reply = self.masters[place].say(command, 0, b"trusted")
                vote = command.vote(reply[1:])
            asked.tally.cast(place, vote)
