"""The world of a simulation: true time, randomness, clocks, masters and the transcript."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from redlock_django.backends.memory.master import MemoryMaster
from redlock_django.engine.protocol.commands import (
    Command,
    Heal,
    Release,
    Reply,
    Take,
    decode,
)
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.statuses import Status
from redlock_django.engine.protocol.trust_marker import Join
from redlock_django.wire.servers.info import run_of

WRITTEN = {Status.MARKED, Status.FRESH, Status.RESTARTED, Status.STEPPED}
"""The statuses of join.lua where it has written the marker."""

RARE: dict[int, str] = {
    Status.BURIED: "buried",
    Status.NOT_READY: "not ready",
    Status.FENCE_AHEAD: "fence ahead",
    Status.ABSENT: "absent",
    Status.RESERVED: "promised",
}
"""The statuses that few commands are answered with, by the name of that state."""

Memory = tuple[dict[str, tuple[bytes, float]], dict[str, dict[bytes, float]], dict[str, float]]
EPOCH = 1_760_000_000.0  # a present-day wall clock, so that fences (µs) have a realistic size


class Violation(AssertionError):
    """A promise of the algorithm was broken."""


class World:
    """Events in the order of true time, in seconds; one random stream for each purpose."""

    def __init__(self, seed: int, *, recording: bool = False) -> None:
        self.seed = seed
        self.stepping = False  # whether clocks may step
        self.now = 0.0
        self.seen: Counter[str] = Counter()
        self.transcript: list[str] | None = [] if recording else None
        self._order = count().__next__
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def rng(self, purpose: str) -> Random:
        """Return a random stream of its own, so that a new kind of fault changes no other."""
        return Random(f"{self.seed}/{purpose}")

    def at(self, when: float, what: Callable[..., None], *args: Any) -> None:
        """Schedule a call at a moment of true time that is not over yet."""
        heappush(self._events, (when, self._order(), what, args))

    def after(self, delay: float, what: Callable[..., None], *args: Any) -> None:
        """Schedule a call that many seconds from now; refuse to turn time back."""
        if delay < 0:
            raise ValueError(f"{what} in {delay} s")
        heappush(self._events, (self.now + delay, self._order(), what, args))

    def run(self, until: float) -> None:
        """Run all events up to a moment."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, what, args = heappop(events)
            what(*args)
        self.now = until

    def note(self, who: str, *words: object) -> None:
        """Add a line to the transcript, if one is recorded."""
        if self.transcript is not None:
            self.transcript.append(f"{self.now:9.4f} {who:>4} {' '.join(map(str, words))}")


@dataclass(slots=True)
class Clock:
    """A clock that runs at a steady rate, `first + rate × true time`, and may be made to step."""

    world: World
    first: float
    rate: float
    off: float = 0.0  # the sum of its steps
    steps: list[tuple[float, float]] = field(default_factory=list)  # when, and how far

    def read(self) -> float:
        """Return what the clock shows, in seconds."""
        return self.first + self.rate * self.world.now

    def when(self, shown: float) -> float:
        """Return the true time at which the clock shows `shown`, if it steps no more."""
        return (shown - self.first) / self.rate

    def micros(self) -> int:
        """Return what the clock shows, in µs."""
        return int((self.first + self.rate * self.world.now) * 1_000_000)

    def step(self, seconds: float) -> None:
        """Step by some seconds, forward or back."""
        self.first += seconds
        self.off += seconds
        self.steps.append((self.world.now, seconds))

    def rose(self, since: float) -> float:
        """Return by how much it was ahead, at most, of what any reading since then predicted."""
        return _highest(seconds for when, seconds in self.steps if when >= since)

    def fell(self, since: float) -> float:
        """Return by how much it was behind, at most, of what any reading since then predicted."""
        return _highest(-seconds for when, seconds in self.steps if when >= since)


def _highest(steps: Iterable[float]) -> float:
    highest = height = 0.0
    for step in steps:
        height = max(height + step, 0.0)
        highest = max(highest, height)
    return highest


class SimulatedMaster:
    """A `MemoryMaster` that can hang, die and come back with or without its memory."""

    def __init__(
        self,
        world: World,
        index: int,
        deployment: Deployment,
        clock: Clock,
        number: int = 0,
    ) -> None:
        self.world = world
        self.index = index
        self.name = deployment.names[index]
        self.deployment = deployment
        self.clock = clock
        self.up = True
        self.hung = False
        self.restored = False  # from a snapshot, which may bring back expired keys
        self.slow = 0.0
        self.marked: list[float] = []  # when it was made to wait until it is trusted again
        self.forgot = -1.0  # when it last lost its memory, or a part of it
        # Until when a client may not know that it lost a part of its memory, and from when it has.
        self.unknown: list[tuple[float, float]] = []
        self.life = 0  # a connection belongs to one life: bytes for an older one are dropped
        self.memory = MemoryMaster(clock.micros)
        self.memory.keyspace.publish = self._publish
        self.hearers: dict[str, Callable[[bytes], None]] = {}  # by channel
        self._rng = world.rng(f"master {number or index}")
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._saved: Memory = ({}, {}, {})
        # Called after every script, if given.
        self.watched: Callable[[SimulatedMaster], None] | None = None
        self.freed: set[str] = set()  # tokens that a release has found here, and deleted
        self.replaced: set[tuple[str, str]] = set()  # a token, and one that has replaced it here
        self._reborn()

    def _publish(self, channel: str, name: bytes) -> int:
        hearer = self.hearers.get(channel)
        if hearer is None:
            return 0
        self.world.seen["asked to watch" if name.startswith(b" ") else "called"] += 1
        hearer(name)
        return 1

    def _reborn(self) -> None:
        self.life += 1
        self.hearers.clear()
        self._buried: dict[str, float] = {}  # token -> end of its tombstone, by our clock
        # Tokens that came back after their tombstone or from a snapshot; they stay for their TTL.
        self.strays: set[str] = set()
        self.memory.run_id = f"{self._rng.getrandbits(160):040x}"
        self.replica = False
        self.evicting = 0.0  # since when its policy lets it evict keys, 0.0 if it does not
        self._evicted = 0
        self._replids = ("0" * 40, "0" * 40)

    @property
    def info(self) -> dict[str, str]:
        """Return what INFO reports."""
        return {
            "redis_version": "7.2.0",
            "run_id": self.memory.run_id,
            "role": "slave" if self.replica else "master",
            "maxmemory": "1" if self.evicting else "0",
            "maxmemory_policy": "allkeys-lru" if self.evicting else "noeviction",
            "master_replid": self._replids[0],
            "master_replid2": self._replids[1],
            "evicted_keys": str(self._evicted),
        }

    @property
    def run(self) -> str:
        """Return the run that a marker is bound to."""
        return run_of(self.info)

    def receive(self, what: Callable[..., None], *args: Any) -> None:
        """Process what has arrived: now, or when the master no longer hangs."""
        if self.hung:
            self._backlog.append((what, args))
        else:
            what(*args)

    def join(self, run_id: str, how: str, fingerprint: str = "") -> Reply:
        """Return the reply of join.lua to a client of this deployment (by default our own)."""
        query = Join(
            deployment=self.deployment, run_id=run_id, mode=how, fingerprint=fingerprint or None
        )
        reply = self.memory.ask(query)
        if reply.status in WRITTEN and how != "trust":
            self.marked.append(self.world.now)
            self.world.seen["distrusted for a step"] += how == "distrust"
        return reply

    def reply_to(self, command: Command, keys: list[str], argv: list[bytes]) -> Reply:
        """Return the reply of a command's script to these KEYS and ARGV."""
        if command.trusted and self.deployment.failover and not self._is_named(argv[-2]):
            self.world.seen["another server"] += 1
            return Reply(int(argv[0]), Status.NOT_READY, self.clock.micros(), b"")
        reply = decode(self.memory.run(command, keys, argv))
        status = reply.status
        if status in RARE:
            self.world.seen[RARE[status]] += 1
        elif status == Status.GRANTED and isinstance(command, Heal):
            self.world.seen["healed"] += 1
        if isinstance(command, Release):
            if status == Status.GRANTED:
                self.freed.add(command.token)
            if command.bury:
                self._buried[command.token] = self.clock.read() + self.deployment.max_ttl
        elif command.sets and status == Status.GRANTED and command.token in self._buried:
            self._dug_up(command.token)
        if isinstance(command, Take) and status == Status.GRANTED:
            self.replaced.add((command.expected, command.token))
        if self.watched is not None:
            self.watched(self)
        return reply

    def _is_named(self, marker: bytes) -> bool:
        """Return whether this is the server that a marker names, as failover.lua decides it."""
        run = run_of({**self.info, "evicted_keys": "0"})
        return marker.startswith(run.encode()) and not self.replica

    def _dug_up(self, token: str) -> None:
        """Check that a token came back only after its tombstone expired."""
        if self.clock.read() < self._buried[token] - 0.001:
            raise Violation(f"{token[:6]}, buried, is back on {self.name}")
        self.world.seen["outlived its tombstone"] += 1
        self.strays.add(token)

    def hang(self) -> None:
        """Stop, as by SIGSTOP: what arrives waits until `resume`."""
        self.hung = True

    def resume(self) -> None:
        """Go on, with everything that has arrived meanwhile."""
        self.hung = False
        backlog, self._backlog = self._backlog, []
        for what, args in backlog:
            what(*args)

    def kill(self) -> None:
        """Die; what has arrived and was not processed is lost."""
        self.up = self.hung = False
        self._backlog.clear()

    def step(self, seconds: float, *, cleans: bool) -> None:
        """Step the clock. With `cleans`, the master deletes what is then expired."""
        self.clock.step(seconds)
        if not (cleans and self.up):
            return
        for key in list(self.memory.keyspace.strings):
            self.memory.keyspace.get(key)
        for key in list(self.memory.keyspace.sets):
            self.memory.keyspace.sorted_set(key)
        for token in self._buried:
            if self.memory.keyspace.get(self.deployment.tomb(token)) is None:
                self._buried[token] = 0.0

    def start(self, *, snapshot: bool) -> None:
        """Come back, empty or with the last snapshot."""
        self.up = True
        self.forgot = self.world.now
        self.restored = snapshot
        self._reborn()
        strings, sets, ends = self._saved if snapshot else ({}, {}, {})
        self.memory.keyspace.strings = dict(strings)
        self.memory.keyspace.sets = {key: dict(members) for key, members in sets.items()}
        self.memory.keyspace.ends = dict(ends)
        self.strays.update(self.locks().values())

    def save(self) -> None:
        """Take a snapshot that a later start can use."""
        self._saved = self.backup()

    def backup(self) -> Memory:
        """Return a copy of the memory, as another server has it that replicates this one."""
        memory = self.memory
        sets = {key: dict(members) for key, members in memory.keyspace.sets.items()}
        return dict(memory.keyspace.strings), sets, dict(memory.keyspace.ends)

    def copy(self, backup: Memory, unknown: float) -> None:
        """Become a replica of a server that has this data.

        For `unknown` seconds, a client may not know it: it asks for INFO no more often.
        """
        self.forgot = self.world.now
        self.unknown.append((self.forgot, self.forgot + unknown))
        self.restored = self.replica = True
        self.memory.keyspace.strings, self.memory.keyspace.sets, self.memory.keyspace.ends = backup
        for token in self._buried:
            if self.deployment.tomb(token) not in self.memory.keyspace.strings:
                self._buried[token] = 0.0
        self.strays.update(self.locks().values())
        number = self._rng.getrandbits(160)
        self._replids = f"{number:040x}", f"{number + 1:040x}"

    def promote(self) -> None:
        """Become a master again."""
        self.replica = False

    def evict(self, key: str, unknown: float) -> None:
        """Evict a key, as the policy allows; a client may not know it for so many seconds."""
        self.forgot = self.world.now
        # What shows that keys may be missing has been in INFO since the policy changed.
        self.unknown.append((self.forgot, self.evicting + unknown))
        self._evicted += 1
        token = key.removeprefix(self.deployment.tomb(""))
        if token in self._buried:
            self._buried[token] = 0.0
        self.memory.keyspace.strings.pop(key, None)
        self.memory.keyspace.sets.pop(key, None)
        self.memory.keyspace.ends.pop(key, None)

    def flush(self) -> None:
        """Forget everything and stay alive: FLUSHALL."""
        self.forgot = self.world.now
        self.memory.keyspace.strings.clear()
        self.memory.keyspace.sets.clear()
        self.memory.keyspace.ends.clear()

    def waiters(self) -> dict[str, set[str]]:
        """Return the names in the queues of this master, by resource."""
        prefix = self.deployment.queue("")
        return {
            key.removeprefix(prefix): {name.decode() for name in queue}
            for key in list(self.memory.keyspace.sets)
            if key.startswith(prefix) and (queue := self.memory.keyspace.sorted_set(key))
        }

    def locks(self) -> dict[str, str]:
        """Return the tokens of the locks on this master, by resource."""
        prefix = self.deployment.lock("")
        return {
            key.removeprefix(prefix): value.decode().split(" ", 1)[0]
            for key in list(self.memory.keyspace.strings)
            if key.startswith(prefix) and (value := self.memory.keyspace.get(key)) is not None
        }
