"""The simulator: a driver of the engine's protocols that controls time and randomness.

`uv run python -m tests.engine.simulator --seed 123` replays one seed and prints its transcript.
For many seeds see `tests/engine/sweep.py`; to make a failing seed smaller, see
`tests/engine/shrink.py`.
"""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from random import Random
from statistics import median

from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.quorum import quorum
from tests.engine.changes import CHANGES, ChangedList
from tests.engine.checker import Checker
from tests.engine.client_store import SimulatedStore
from tests.engine.clients import Client
from tests.engine.network import Line, Wire
from tests.engine.world import EPOCH, Clock, Memory, SimulatedMaster, Violation, World

RATE_APART = 0.0045  # two clocks: less than the 1 % that the drift allows for
KINDS = (
    "deaf", "mute", "partition", "isolate", "hang", "kill", "restart", "snapshot", "flush",
    "slow", "lag", "reset", "pause", "cancel", "die", "jump",
)  # fmt: skip
STEPS = ("step", "leap")  # of a master's clock, of a client's clock; each draws from its own rng
SERVERS = ("copy", "evict")  # a part of the memory is lost without a restart; as above
# Log records about masters whose clocks step would only be noise.
logging.getLogger("redlock_django").addHandler(logging.NullHandler())


def restart_delay(max_ttl: float, skew: float) -> float:
    """Return the value of RESTART_DELAY = "auto"."""
    return 1.02 * max_ttl + 5 * skew + 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The draws of one seed: the size of the world and the faults that happen in it."""

    limit: int = 1  # clients that may hold a resource at once; drawn for --permits only
    lower: float = 0.0  # the part of the clients whose limit is one less
    masters: int = 3
    clients: int = 3
    resources: int = 1
    seconds: float = 10.0
    max_ttl: float = 2.0
    skew: float = 0.2
    ttls: tuple[float, float] = (0.2, 2.0)
    busy: float = 0.1
    two: float = 0.0
    hands_on: float = 0.0  # the part of the locks that are handed on; never drawn
    min_holds: float = 0.0  # the part of the locks that have a minimum hold
    latency: float = 0.002
    master_timeout: float = 0.05
    give_up: float = 0.4  # a link that owes a reply for that long
    late: float = 0.8
    drifting: bool = False
    wrong_walls: float = 0.0
    off_masters: float = 0.3  # of the skew, to either side
    outsider: bool = False
    stalls: float = 0.0
    strikes: float = 0.0
    faults: frozenset[str] = field(default_factory=frozenset, repr=False)  # shown in order
    every: float = 0.5
    dead: int = 0  # masters that are down from the beginning to the end
    inspected: float = 0.2  # INFO is read again after so many seconds
    failover: bool = False  # with one master: see `Deployment`; never drawn
    change: str = ""  # how new clients' lists of masters differ, one of `changes.CHANGES`

    @staticmethod
    def read(text: str) -> Setup:
        """Read what `spelled` has written."""
        given = json.loads(text)
        given = {key: tuple(value) if key == "ttls" else value for key, value in given.items()}
        return Setup(**{**given, "faults": frozenset(given.get("faults", ()))})

    def spelled(self) -> str:
        """Return the setup as JSON, without default values."""
        usual = asdict(Setup())
        other = {key: value for key, value in asdict(self).items() if value != usual[key]}
        return json.dumps(other, default=sorted)

    @staticmethod
    def drawn(
        rng: Random, steps: Random, lists: Random, holds: Random, servers: Random,
        permits: Random | None = None,
    ) -> Setup:  # fmt: skip
        """Draw a setup. Every seed has a few kinds of faults only, so that each is tested deeply.

        `steps` is the rng that decides whether clocks step, `lists` whether the list of masters
        changes, `holds` whether locks have a minimum hold, `servers` whether servers lose a part of
        their memory without a restart. With `permits`, that rng decides how many clients may hold
        a resource at once.
        """
        max_ttl = rng.choice((0.8, 2.0, 3.0))
        drawn = Setup(
            masters=rng.choice((1, 2, 3, 3, 3, 4, 5, 5, 7)),
            clients=rng.randint(2, 5),
            resources=rng.choice((1, 1, 2, 3)),
            max_ttl=max_ttl,
            ttls=(0.2, rng.choice((0.5, max_ttl))),
            busy=rng.choice((0.02, 0.1, 0.4)),
            two=rng.choice((0.0, 0.3)),
            latency=rng.choice((0.0005, 0.002, 0.01)),
            master_timeout=rng.choice((0.03, 0.05, 0.2, 0.5)),
            late=rng.choice((0.02, 0.4)) * max_ttl,
            drifting=rng.random() < 0.6,
            wrong_walls=rng.choice((0.0, 0.1, 1.0, 100.0)),
            off_masters=rng.choice((0.0, 0.3, 0.9)),
            outsider=rng.random() < 0.15,
            stalls=rng.choice((0.0, 0.0, 0.01, 0.05)),
            strikes=rng.choice((0.0, 0.0, 0.02, 0.1)),
            faults=frozenset(rng.sample(KINDS, rng.randint(0, 6)))
            | {kind for kind in STEPS if steps.random() < 0.12},
            every=rng.choice((0.1, 0.3, 1.0)),
        )
        drawn = replace(drawn, give_up=drawn.master_timeout * rng.choice((4, 8)))
        if holds.random() < 0.15:
            drawn = replace(drawn, min_holds=holds.choice((0.2, 0.8)))
        drawn = replace(drawn, inspected=servers.choice((0.05, 0.2)))
        if not drawn.faults.intersection(STEPS):
            more = {kind for kind in SERVERS if servers.random() < 0.12}
            drawn = replace(drawn, faults=drawn.faults | more)
        if permits is not None:
            limit = permits.choice((2, 2, 3, 4))
            drawn = replace(
                drawn, limit=limit, clients=limit + permits.randint(1, 3), two=0.0,
                resources=permits.choice((1, 1, 1, 2)), lower=permits.choice((0.0, 0.0, 0.4)),
                busy=permits.choice((0.02, 0.1)),
            )  # fmt: skip
        return replace(drawn, change=lists.choice(CHANGES) if lists.random() < 0.1 else "")


class Simulation:
    """One seed, from the first connection to the last check."""

    def __init__(
        self,
        seed: int,
        setup: Setup | None = None,
        *,
        permits: bool = False,
        recording: bool = False,
    ) -> None:
        self.world = World(seed, recording=recording)
        rng = self.world.rng
        self.setup = setup or Setup.drawn(
            rng("setup"), rng("steps"), rng("lists"), rng("min holds"), rng("servers"),
            rng("permits") if permits else None,
        )  # fmt: skip
        self.world.stepping = bool(self.setup.faults.intersection(STEPS))
        self.world.note(
            "", f"{self.setup}, faults: {' '.join(sorted(self.setup.faults)) or 'none'}"
        )
        self.checker = Checker(self.world)
        self._rng = self.world.rng("faults")
        self._calm = False
        size = self.setup
        self.deployment = Deployment(
            names=tuple(f"m{index}" for index in range(size.masters)),
            max_ttl=size.max_ttl,
            max_clock_skew=size.skew,
            restart_delay=restart_delay(size.max_ttl, size.skew),
            fence_ttl=restart_delay(size.max_ttl, size.skew),
            failover=size.failover,
        )
        self.resources = [f"r{number}" for number in range(size.resources)]
        clocks = self.world.rng("clocks")
        self.masters = [self._master(index, clocks) for index in range(size.masters)]
        self.changed = ChangedList(self) if size.change else None
        self.checker.masters = self.masters
        for master in self.masters if size.limit > 1 else ():
            master.watched = self.checker.saw
        for master in self.masters[: size.dead]:
            master.kill()
        self.clients: list[Client] = []
        for _ in range(size.clients):
            self._client()

    def _rate(self, rng: Random) -> float:
        if not self.setup.drifting:
            return 1.0
        # The ends of the range find the most errors.
        return 1 + RATE_APART * rng.choice((-1.0, 1.0, rng.uniform(-1, 1)))

    def _master(self, index: int, rng: Random) -> SimulatedMaster:
        off = self.setup.skew * rng.uniform(-1, 1) * self.setup.off_masters
        if self.setup.outsider and index == 0 and self.setup.masters > 2:
            off = 3 * self.setup.skew * rng.choice((-1, 1))
        clock = Clock(self.world, EPOCH + off, self._rate(rng))
        master = SimulatedMaster(self.world, index, self.deployment, clock)
        master.join(master.run, "trust")
        return master

    def _client(self) -> Client:
        """Start a client, with the list of masters that new clients have now."""
        size = self.setup
        name = f"c{len(self.clients)}"
        rng = self.world.rng(f"clock {name}")
        clock = Clock(self.world, rng.uniform(0, 1000), self._rate(rng))
        client = Client(
            self.world,
            name,
            clock,
            self.checker,
            wall_error=rng.uniform(-1, 1) * size.wrong_walls,
            stalls=0.0 if self._calm else size.stalls,
            strikes=0.0 if self._calm else size.strikes,
        )
        client.hands_on = size.hands_on
        if size.limit > 1:
            lower = self.world.rng(f"limit {name}").random() < size.lower
            client.limit = max(2, size.limit - lower)
        deployment = self.deployment
        if self.changed is not None and self.changed.deployed:
            deployment = self.changed.deployment
        client.wire = self._wire(client, deployment)
        client.store = SimulatedStore(client, deployment)
        self.clients.append(client)
        client.start(
            client.live(
                self.resources,
                size.ttls,
                busy=size.busy,
                two=size.two,
                min_holds=size.min_holds,
                stop_at=size.seconds,
            )
        )
        return client

    def _wire(self, client: Client, deployment: Deployment) -> Wire:
        size = self.setup
        return Wire(
            self.world,
            client,
            [master for master in self.masters if master.name in deployment.names],
            deployment,
            Membership(deployment),
            master_timeout=size.master_timeout,
            give_up=size.give_up,
            latency=self._calm_latency if self._calm else size.latency,
            late=size.late,
            repeating=size.seconds if size.faults else 0.0,
            inspected=size.inspected if size.faults.intersection(SERVERS) else 0.0,
        )

    @property
    def _calm_latency(self) -> float:
        return min(self.setup.latency, self.setup.master_timeout / 30)

    @property
    def living(self) -> list[Client]:
        """Return the clients that were not killed."""
        return [client for client in self.clients if not client.gone]

    # The run.

    def run(self) -> Counter[str]:
        """Run to the end and return the states reached. Raise Violation for a broken promise."""
        for kinds, rng, every in self._schedules():
            self.world.after(rng.expovariate(1 / every), self._fault, kinds, rng, every)
        if self.changed is not None:
            self.changed.begin()
        self.world.run(self.setup.seconds)
        self._heal()
        self._check_left()
        self._check_live()
        return self.world.seen

    def _heal(self) -> None:
        """End all faults and interrupt every client that is not idle."""
        self.world.note("", "the faults end")
        self._calm = True
        for client in self.living:
            client.interrupt()
            client._stalls = client._strikes = 0.0
        for master in self.masters[self.setup.dead :]:
            master.slow = 0.0
            master.promote()
            master.evicting = 0.0
            if not master.up:
                master.start(snapshot=False)
            master.resume()
        for client in self.living:
            client.wire.latency = self._calm_latency
            for line in client.lines:
                line.lag = 0.0
                client.wire.heal(line)
        if self.changed is not None:
            self.changed.complete()

    def _check_left(self) -> None:
        """Check that nothing is left of any round once every link is back, nor comes back late."""
        for _ in range(200):  # one in some 300,000 pauses is longer than 7 s
            self.world.run(self.world.now + 0.1)
            if all(self._settled(client) for client in self.living):
                break
        else:
            raise Violation("the clients do not end")
        self.world.run(self.world.now + 2 * self.setup.master_timeout)
        self.checker.left(self.masters, clients_idle=True)
        self.world.run(self.world.now + self.setup.late)
        self.checker.left(self.masters, clients_idle=True)

    def _settled(self, client: Client) -> bool:
        return client.idle and all(
            not line.master.up or (line.link is not None and not line.pending_releases)
            for line in client.lines
        )

    def _check_live(self) -> None:
        """Check that every resource is granted soon once all forgotten locks have expired."""
        # The wait includes what any clock went back by: until a master's clock has caught up, its
        # fences are ahead of it; until a client's clock has, the client takes its leases for lost.
        clocks = [m.clock for m in self.masters] + [c.clock for c in self.living]
        back = max(clock.fell(0.0) for clock in clocks)
        forgetting = self.world.stepping or self.setup.faults.intersection(SERVERS)
        for _ in range(3 if forgetting else 2):
            # Only a command shows that a master was flushed, and none is sent while a majority
            # is known to be unreachable.
            self._ask_once(wait=0.0)
            self.world.run(
                self.world.now + self.deployment.restart_delay + self.deployment.max_ttl + back
            )
        if not self._clocks_agree():
            return
        self.checker.winners.clear()
        asked = self._ask_once(wait=2.0)
        self.world.run(self.world.now + 4.0)
        for resource in asked:
            if not self.checker.winners.get(resource):
                raise Violation(f"no client acquires {resource} although all faults have ended")
        if any(line.suspect for client in self.living for line in client.lines):
            raise Violation("a master is suspected for ever")
        if not all(client.idle for client in self.living):
            raise Violation("a client does not end")
        self.checker.left(self.masters, clients_idle=False)

    def _clocks_agree(self) -> bool:
        """Return whether a majority of clocks is no further apart than MAX_CLOCK_SKEW allows."""
        names = self.deployment.names
        shown = [one.clock.read() for one in self.masters if one.up and one.name in names]
        near = [one for one in shown if abs(one - median(shown)) <= self.setup.skew]
        apart = max(near, default=0) - min(near, default=0)
        return len(near) >= quorum(len(names)) and apart < 0.95 * self.setup.skew

    def _ask_once(self, *, wait: float) -> set[str]:
        """Make every client ask for a resource, in turn."""
        asked = set()
        for nth, client in enumerate(self.living):
            name = self.resources[nth % len(self.resources)]
            client.start(client.once((name,), self.deployment.max_ttl, wait, 0.01))
            asked.add(name)
        return asked

    # Faults.

    def _schedules(self) -> Iterator[tuple[list[str], Random, float]]:
        """Yield kinds of faults, their rng and their mean interval; some kinds separately."""
        alone, every = (*STEPS, *SERVERS), self.setup.every
        kinds = sorted(self.setup.faults.difference(alone))
        if kinds:
            yield kinds, self._rng, every
        for kind in sorted(self.setup.faults.intersection(alone)):
            rng = self.world.rng(f"fault {kind}")
            # A master that steps all the time is hardly ever trusted and seldom asked.
            yield [kind], rng, every * rng.choice((1, 8))

    def _fault(self, kinds: list[str], rng: Random, every: float) -> None:
        if self._calm:
            return
        kind = rng.choice(kinds)
        self.world.seen["faults"] += 1
        self.world.seen[f"fault {kind}"] += 1
        seconds = rng.expovariate(1 / 0.3)
        if kind in (*STEPS, *SERVERS):
            getattr(self, f"_{kind}")(seconds, rng)
        else:
            getattr(self, f"_{kind}")(seconds)
        self.world.after(rng.expovariate(1 / every), self._fault, kinds, rng, every)

    def _later(self, seconds: float, what: str, *args: object) -> None:
        self.world.after(seconds, self._unless_calm, what, *args)

    def _unless_calm(self, what: str, *args: object) -> None:
        if not self._calm:
            getattr(self, what)(*args)

    def _some_master(self) -> SimulatedMaster:
        master = self._rng.choice(self.masters)
        self.world.note(master.name, "is struck")
        return master

    def _some_line(self) -> tuple[Client, Line]:
        client = self._rng.choice(self.clients)
        return client, self._rng.choice(client.lines)

    def _cut(self, client: Client, line: Line, seconds: float, *, out: bool, back: bool) -> None:
        self.world.note(client.name, f"/ {line.master.name} for {seconds:.3f} s")
        line.cut_out, line.cut_back = line.cut_out or out, line.cut_back or back
        self._later(seconds, "_mend", client, line)

    def _mend(self, client: Client, line: Line) -> None:
        if not client.gone:
            client.wire.heal(line)

    def _deaf(self, seconds: float) -> None:
        self._cut(*self._some_line(), seconds, out=True, back=False)

    def _mute(self, seconds: float) -> None:
        self._cut(*self._some_line(), seconds, out=False, back=True)

    def _partition(self, seconds: float) -> None:
        master = self._some_master()
        for client in self.living:
            if self._rng.random() < 0.7 and (line := client.line_to(master)):
                self._cut(client, line, seconds, out=True, back=True)

    def _isolate(self, seconds: float) -> None:
        client = self._rng.choice(self.clients)
        for line in client.lines:
            if self._rng.random() < 0.7:
                self._cut(client, line, seconds, out=True, back=self._rng.random() < 0.5)

    def _hang(self, seconds: float) -> None:
        master = self._some_master()
        if master.up:
            master.hang()
            self._later(seconds, "_unhang", master)

    def _unhang(self, master: SimulatedMaster) -> None:
        master.resume()

    def _kill(self, seconds: float, *, snapshot: bool = False) -> None:
        master = self._some_master()
        if not master.up:
            return
        self.world.note(master.name, f"dies for {seconds:.3f} s")
        master.kill()
        self._later(seconds, "_revive", master, snapshot)
        for client in self.living:
            if line := client.line_to(master):
                client.wire.notice(line)

    def _revive(self, master: SimulatedMaster, snapshot: bool) -> None:
        if not master.up:
            self.world.note(master.name, f"is back {'from a snapshot' if snapshot else 'empty'}")
            master.start(snapshot=snapshot)

    def _restart(self, seconds: float) -> None:
        self._kill(seconds / 20)

    def _snapshot(self, seconds: float) -> None:
        if self._rng.random() < 0.6:
            self._some_master().save()
        else:
            self._kill(seconds / 10, snapshot=True)

    def _flush(self, _: float) -> None:
        master = self._some_master()
        if master.up:
            self.world.note(master.name, "is flushed")
            master.flush()

    def _slow(self, seconds: float) -> None:
        master = self._some_master()
        master.slow = self._rng.uniform(0, 1.2) * self.setup.master_timeout
        self._later(seconds, "_unslow", master)

    def _unslow(self, master: SimulatedMaster) -> None:
        master.slow = 0.0

    def _lag(self, seconds: float) -> None:
        _, line = self._some_line()
        line.lag = self._rng.uniform(0, 1.2) * self.setup.master_timeout
        self._later(seconds, "_unlag", line)

    def _unlag(self, line: Line) -> None:
        line.lag = 0.0

    def _reset(self, _: float) -> None:
        client, line = self._some_line()
        if line.link is not None and not client.gone:
            client.hear(client.wire._ended, line, line.link)

    def _pause(self, seconds: float) -> None:
        self._rng.choice(self.clients).pause(seconds * 2)

    def _jump(self, _: float) -> None:
        self._rng.choice(self.clients).jump(self._rng.uniform(-100, 100))

    def _far(self, rng: Random) -> float:
        """Draw a clock step: too small to be noticed mostly, near the limit, or large."""
        skew = self.setup.skew
        far = rng.choice(
            (rng.uniform(0, skew), rng.uniform(skew, 4 * skew), rng.expovariate(1 / 3.0))
        )
        return far * rng.choice((-1, 1, 1))

    def _step(self, seconds: float, rng: Random) -> None:
        """Step one master's clock, or those of many at once; for good, or for a while."""
        masters = self.masters
        struck = [rng.choice(masters)]
        if rng.random() < 0.15:
            struck = rng.sample(masters, rng.randint(1, len(masters)))
        far, times, cleans = self._far(rng), 1, rng.random() < 0.7
        if rng.random() < 0.2:
            far, times = far / 10, 10
        for master in struck:
            self._set(master, far, cleans)
            for nth in range(1, times):
                self._later(nth * seconds / 10, "_set", master, far, cleans)
            if rng.random() < 0.4:
                self._later(seconds, "_set", master, -far * times, cleans)

    def _set(self, master: SimulatedMaster, far: float, cleans: bool) -> None:
        self.world.note(master.name, f"has its clock step by {far:+.3f} s")
        master.step(far, cleans=cleans)

    def _leap(self, seconds: float, rng: Random) -> None:
        """Suspend a client whose clock does not count the time, or make its clock leap."""
        client = rng.choice(self.clients)
        if rng.random() < 0.4:
            client.doze(seconds * 2)
        else:
            client.leap(self._far(rng))

    def _copy(self, seconds: float, rng: Random) -> None:
        """Make a master take its data back from a backup, as it was some time before.

        Half of the masters are a master again before any client can know.
        """
        master = rng.choice(self.masters)
        if master.up:
            lasts = seconds if rng.random() < 0.5 else 0.0
            after = rng.uniform(0, self.setup.max_ttl)
            self._later(after, "_take_copy", master, master.backup(), lasts)

    def _take_copy(self, master: SimulatedMaster, backup: Memory, lasts: float) -> None:
        if master.up and not (master.hung or master.replica):
            self.world.note(master.name, f"takes an old copy of its data, for {lasts:.3f} s")
            master.copy(backup, self._unknown)
            if lasts:
                self._later(lasts, "_promote", master)
            else:
                master.promote()

    def _promote(self, master: SimulatedMaster) -> None:
        self.world.note(master.name, "is a master again")
        master.promote()

    def _evict(self, seconds: float, rng: Random) -> None:
        """Make a master evict keys for a while: some keys of any kind, and more of locks."""
        master = rng.choice(self.masters)
        if master.up and not master.evicting:
            self.world.note(master.name, f"may evict keys for {seconds:.3f} s")
            master.evicting = self.world.now
            for _ in range(rng.randint(0, 4)):
                self._later(rng.uniform(0, seconds), "_evict_one", master, rng)
            self._later(seconds, "_end_evicting", master)

    def _evict_one(self, master: SimulatedMaster, rng: Random) -> None:
        keys = [*master.memory.keyspace.strings, *master.memory.keyspace.sets]
        locks = [key for key in keys if key.startswith(self.deployment.lock(""))]
        keys = locks if locks and rng.random() < 0.7 else keys
        if keys and master.up and master.evicting:
            key = rng.choice(keys)
            self.world.note(master.name, f"evicts {key}")
            master.evict(key, self._unknown)

    def _end_evicting(self, master: SimulatedMaster) -> None:
        self.world.note(master.name, "evicts no more keys")
        master.evicting = 0.0

    @property
    def _unknown(self) -> float:
        """The seconds for which a client may not know that a master has lost locks."""
        if self.setup.failover:
            return -1.0  # no client need ask: its next command is refused
        return 1.01 * self.setup.inspected

    def _cancel(self, _: float) -> None:
        self._rng.choice(self.clients).interrupt()

    def _die(self, _: float) -> None:
        client = self._rng.choice(self.clients)
        if not client.gone and len(self.clients) < 12:
            client.kill()
            self._client()


def command(seed: int, *, permits: bool = False) -> str:
    """Return the command that replays a seed."""
    several = " --permits" if permits else ""
    return f"uv run python -m tests.engine.simulator --seed {seed}{several}"


def replay(seed: int, setup: Setup | None = None, *, permits: bool = False) -> str:
    """Return the transcript of a seed, its end and the command that replays it."""
    simulation = Simulation(seed, setup, permits=permits, recording=True)
    end = "no promise was broken"
    try:
        simulation.run()
    except Exception as error:  # noqa: BLE001 - any error is a result of the seed
        end = f"{type(error).__name__}: {error}"
    lines = simulation.world.transcript or []
    again = command(seed, permits=permits)
    if setup is not None:
        again += f" --setup {shlex.quote(setup.spelled())}"
    return "\n".join([*lines, end, again])


def sweep(
    seeds: Iterable[int], simulate: Callable[[int], Simulation]
) -> tuple[Counter[str], dict[int, str]]:
    """Run many seeds; return the states they reached, and the error of each failing one."""
    seen: Counter[str] = Counter()
    failing = {}
    for seed in seeds:
        simulation = simulate(seed)
        try:
            simulation.run()
        except Exception as error:  # noqa: BLE001 - the other seeds go on
            failing[seed] = f"{type(error).__name__}: {error}"
        seen += simulation.world.seen
    return seen, failing


def main(argv: list[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.simulator")
    parser.add_argument("--seed", type=int, required=True, help="the seed to replay")
    parser.add_argument("--permits", action="store_true", help="several clients may hold a name")
    parser.add_argument("--setup", type=Setup.read, help="JSON of a setup to use instead")
    options = parser.parse_args(argv)
    text = replay(options.seed, options.setup, permits=options.permits)
    sys.stdout.write(text + "\n")
    return 0 if "no promise was broken" in text else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
