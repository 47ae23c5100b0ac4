"""Compare a real server with the model that the simulator uses: do they reply the same?

Users run the Lua scripts; the simulator and the memory backend run the model. Random commands
go to both, and between them keys are set to unexpected values.

`uv run python -m tests.live.differential --commands 100000 [--server redis-server] [--seed 1]`
sends that many commands, and prints the trace up to the first reply that differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from random import Random
from typing import Any

from redlock_django.backends.memory.master import MemoryMaster
from redlock_django.backends.memory.queue import LATE
from redlock_django.engine.protocol.commands import (
    COMMANDS,
    Acquire,
    AcquireSlot,
    Command,
    Confirm,
    Extend,
    Heal,
    Release,
    Restore,
    Swap,
    as_array,
    script,
)
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.statuses import REFUSED, RESERVED
from redlock_django.testing.masters import local_masters

DEPLOYMENT = Deployment(names=("a", "b", "c"), max_ttl=30, max_clock_skew=0.5, fence_ttl=100)
RESOURCES = ("r", "s", "t")
LIMIT = 3
SLOTS = ("r", "r[1]", "r[2]")
TOKENS = ("a" * 32, "b" * 32, "C0" * 16)
OTHERS = ("plain", "", "a" * 32, f"{'d' * 32} {{}}", f"{'d' * 31} {{}}", f"{'g' * 32} {{}}")
FENCES = ("abc", "", "0x10", " 12 ", "nan", "-5", "1e3", "0", "7", "9" * 16, "9" * 17, "12\n")
WAITERS = (
    "redlock:wake:here 1", "redlock:wake:here 2", "redlock:wake:gone 3", "redlock:wake:there 4",
    "redlock:wake:there 5", "odd",
)  # fmt: skip
HEARD = ("redlock:wake:here", "redlock:wake:there")  # the channels with a subscriber
RUN_IDS = ("1" * 40, "2" * 40)
ASKED = ("held", "find", "look", "scan")  # what inspection asks
NAMES = (b"order:1", b"order:12", b"Order:1", b"user:7", b"a*b", b"[x]", b"a?b", b"a\\b", b"\xff\n")
GLOBS = ("*", "*order*", "*:1", "*\\**", "*\\[x\\]*", "*\\?*", "*\\\\*", "o????:1", "nobody*")
# How much two readings of one remaining time may differ: Redis 7 reads its clock when a script
# begins and again for TIME, and may be descheduled in between.
MILLISECONDS = 50


def _pairs(flat: list[Any]) -> dict[bytes, int]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


class Pair:
    """One real server, and a model that runs at the time of the server's replies."""

    def __init__(self, client: Any, rng: Random) -> None:
        self.client = client
        self.rng = rng
        self.now = 0
        self.model = MemoryMaster(lambda: self.now)
        self.model.keyspace.publish = self._publish
        self.published: list[bytes] = []  # by the model, since the last comparison
        self.ear = client.pubsub()
        for channel in HEARD:
            self.ear.subscribe(channel)
            assert self.ear.get_message(timeout=60)["type"] == "subscribe"
        self.trace: list[str] = []
        for name in (*(command.name for command in COMMANDS), "join", *ASKED):
            client.script_load(script(name)[0])
        self.tick()  # the first command has a time, too

    def _publish(self, channel: str, name: bytes) -> int:
        if channel not in HEARD:
            return 0
        self.published.append(name)
        return 1

    def _heard(self) -> list[bytes]:
        """Return what the server has published since the last call."""
        self.client.publish(HEARD[0], "the last")
        heard = [b""]
        while heard[-1] != b"the last":
            heard.append(self.ear.get_message(timeout=60)["data"])
        return heard[1:-1]

    def clear(self) -> None:
        """Make both empty, and trusted."""
        self.client.flushall()
        self.model.keyspace.strings.clear()
        self.model.keyspace.sets.clear()
        self.model.keyspace.ends.clear()
        self.trace.clear()
        self.put(DEPLOYMENT.marker, "marker", None)

    def tick(self) -> int:
        """Read the server's clock, in ms."""
        seconds, micros = self.client.time()
        self.now = seconds * 1_000_000 + micros
        return self.now // 1000

    def put(self, key: str, value: str, left: int | None) -> None:
        """Set a key to a string, for some ms or for ever, whatever it was before."""
        self.trace.append(f"SET {key} {value!r} {left}")
        until = self.tick() + left if left is not None else None
        self.client.delete(key)
        self.client.set(key, value, pxat=until)
        self.model.keyspace.sets.pop(key, None)
        self.model.keyspace.ends.pop(key, None)
        self.model.keyspace.strings[key] = (
            value.encode(),
            float("inf") if until is None else until,
        )

    def put_set(self, key: str) -> None:
        """Set a key to a sorted set, which is not the type of any lock or fence."""
        self.trace.append(f"ZADD {key}")
        self.client.delete(key)
        self.client.zadd(key, {"x": 9e15})
        self.model.keyspace.strings.pop(key, None)
        self.model.keyspace.ends.pop(key, None)
        self.model.keyspace.sets[key] = {b"x": 9e15}

    def put_queue(self, key: str, queue: dict[str, float], left: int) -> None:
        """Set a queue's waiters, for some ms."""
        self.trace.append(f"ZADD {key} {queue} {left}")
        until = self.tick() + left
        self.client.delete(key)
        self.client.zadd(key, queue)
        self.client.pexpireat(key, until)
        self.model.keyspace.strings.pop(key, None)
        self.model.keyspace.sets[key] = {name.encode(): score for name, score in queue.items()}
        self.model.keyspace.ends[key] = until

    def drop(self, key: str) -> None:
        """Delete a key."""
        self.trace.append(f"DEL {key}")
        self.client.delete(key)
        self.model.keyspace.strings.pop(key, None)
        self.model.keyspace.sets.pop(key, None)
        self.model.keyspace.ends.pop(key, None)

    def eval(self, name: str, keys: list[str], argv: list[Any]) -> None:
        """Ask both; the answers must be the same, but for a few ms of a remaining time."""
        # A release may not read the clock. In a transaction, all commands see the same time.
        transaction = self.client.pipeline()
        transaction.time()
        transaction.evalsha(script(name)[1], len(keys), *keys, *argv)
        (seconds, micros), answer = transaction.execute()
        real = as_array(answer)
        self.now = real[2] or seconds * 1_000_000 + micros
        model = self.model.eval(name, keys, argv)
        self.trace.append(f"{name} {keys} {argv}\n  real  {real}\n  model {model}")
        assert len(real) == len(model), self.transcript()
        for index, (truth, said) in enumerate(zip(real, model, strict=True)):
            left = name != "join" and real[1] in (REFUSED, RESERVED) and index == 4
            near = left and abs(truth - said) <= MILLISECONDS
            assert truth == said or near, self.transcript()

    def index(self, member: bytes, score: float) -> None:
        """Add an entry to the index that expires at a moment of the server's clock, in ms."""
        self.trace.append(f"ZADD {member!r} {score}")
        self.client.zadd(DEPLOYMENT.held, {member: score})
        self.model.keyspace.sorted_set(DEPLOYMENT.held)
        self.model.keyspace.sets.setdefault(DEPLOYMENT.held, {})[member] = score

    def ask(self, name: str, keys: list[str], argv: list[Any]) -> list[Any]:
        """Return both replies to an inspection command, after checking how they begin."""
        real = self.client.evalsha(script(name)[1], len(keys), *keys, 7, *argv)
        self.now = real[2]
        model = self.model.eval(name, keys, [7, *argv])
        self.trace.append(f"{name} {keys} {argv}\n  real  {real}\n  model {model}")
        assert real[:3] == model[:3] == [7, 1, self.now], self.transcript()
        return [real[3:], model[3:]]

    def walk(self, name: str, keys: list[str], pattern: str, step: int) -> None:
        """Check that both find the same, in any number of steps; the model needs one."""
        every, cursor = set(), b"0"
        while True:
            (real, model) = self.ask(name, keys, [cursor.decode(), pattern, step])
            cursor, *found = real
            end, *known = model
            if name == "find":
                assert _pairs(found).items() <= _pairs(known).items(), self.transcript()
                found, known = found[::2], known[::2]
            every |= {*found}
            assert end == b"0"
            if cursor == b"0":
                assert every == {*known}, self.transcript()
                return

    def compare(self) -> None:
        """Check that both have published the same messages, and have the same keys."""
        assert self._heard() == self.published, self.transcript()
        self.published.clear()
        self.tick()
        found = {key.decode() for key in self.client.scan_iter()}
        kept = {
            key
            for key in list(self.model.keyspace.strings)
            if self.model.keyspace.get(key) is not None
        }
        sets = {
            key for key in list(self.model.keyspace.sets) if self.model.keyspace.sorted_set(key)
        }
        assert found == kept | sets, self.transcript()
        for key in kept:
            assert self.client.get(key) == self.model.keyspace.get(key), self.transcript()
            until = self.client.execute_command("PEXPIRETIME", key)
            expected = self.model.keyspace.strings[key][1]
            never = until == -1 and expected == float("inf")
            near = abs(until - expected) <= MILLISECONDS
            assert never or near, f"{self.transcript()}\n{key} until {until}, model {expected}"
        for key in sets:
            real = dict(self.client.zrange(key, 0, -1, withscores=True))
            model = self.model.keyspace.sets[key]
            assert real.keys() == model.keys(), self.transcript()
            until = self.client.execute_command("PEXPIRETIME", key)
            expected = self.model.keyspace.ends.get(key, -1)
            near = abs(until - expected) <= MILLISECONDS
            assert near, f"{self.transcript()}\n{key} until {until}, model {expected}"
            for member, score in real.items():
                same = score == model[member] or abs(score - model[member]) <= MILLISECONDS
                assert same, self.transcript()

    def transcript(self) -> str:
        """Return everything that was done, for a failure's message."""
        return "\n".join(self.trace)


def _random_command(rng: Random, now: int) -> Command:
    resources = tuple(rng.sample(RESOURCES, rng.choice((1, 1, 2, 3))))
    if rng.random() < 0.4:
        resources = (rng.choice(SLOTS),)
    value = f"{rng.choice(TOKENS)} {{}}"
    common: dict[str, Any] = {"deployment": DEPLOYMENT, "resources": resources, "value": value}
    ttl = rng.choice((5.0, 20.0, 30.0))
    fences = tuple(now + rng.choice((-3_000_000, 0, 400_000, 2_000_000)) for _ in resources)
    kind = rng.choice((Acquire, Acquire, Confirm, Extend, Heal, Release, Restore, Swap))
    is_slot = resources[0] in SLOTS and len(resources) == 1
    waiter = rng.choice(("", *WAITERS))
    if kind is Acquire:
        ticket = max(fences) - rng.choice((0, 1000, 5_000_000))
        asked = {**common, "ttl": ttl, "proposal": max(fences), "waiter": waiter, "ticket": ticket}
        return AcquireSlot(**asked, limit=LIMIT) if is_slot else Acquire(**asked)
    if kind is Confirm:
        return Confirm(**common, fences=fences)
    if kind is Extend:
        return Extend(**common, ttl=ttl)
    if kind is Heal:
        return Heal(**common, ttl=ttl, fences=fences)
    if kind is Swap:
        old = rng.choice(TOKENS)
        exactly = rng.random() < 0.5
        # Not 0 exactly, for 1 ms: that lock may expire between the readings that are compared.
        ttl = ttl if exactly else rng.choice((0.0, ttl))
        return Swap(**common, old=old, ttl=ttl, exactly=exactly)
    if kind is Restore:
        return Restore(**common, old=rng.choice(TOKENS))
    bury, calls = rng.random() < 0.2, rng.random() < 0.8
    left = rng.choice((3.0, 15.0, 40.0)) if rng.random() < 0.3 else 0.0
    return Release(
        **common, bury=bury, left=left, waiter=waiter, calls=calls, limit=LIMIT if is_slot else 1
    )


def _disturb(pair: Pair) -> None:
    rng = pair.rng
    resource = rng.choice((*RESOURCES, *SLOTS))
    lock, fence = DEPLOYMENT.lock(resource), DEPLOYMENT.fence(resource)
    queue = DEPLOYMENT.queue(rng.choice(RESOURCES))
    what = rng.randrange(15)
    if what == 0:
        pair.put(lock, rng.choice(OTHERS), rng.choice((4000, 400_000, None)))
    elif what == 1:
        pair.put(lock, f"{rng.choice(TOKENS)} {{}}", rng.choice((1, 4000, 400_000, None)))
        time.sleep(0.003)
    elif what == 2:
        pair.put(fence, rng.choice(FENCES), None)
    elif what == 3:
        ahead = rng.choice((900_000, 5_000_000))
        pair.put(fence, str(pair.tick() * 1000 + ahead), 50_000)
    elif what == 4:
        pair.put_set(rng.choice((lock, fence)))
    elif what == 5:
        pair.put(DEPLOYMENT.held, "not a set", None)
    elif what == 6:
        pair.put(DEPLOYMENT.tomb(rng.choice(TOKENS)), "1", rng.choice((1, 5000)))
        time.sleep(0.003)
    elif what == 7:
        pair.put(DEPLOYMENT.marker, rng.choice(("marker", "marker", "another")), None)
    elif what == 8:
        pair.put(queue, "not a set", rng.choice((None, 5000)))
    elif what in (9, 10, 11):
        now = pair.tick() * 1000
        past = (now, now - 1000, now - 3_000_000)
        scores = (*past, -now + 50_000, -now - 50_000, -now - 5_000_000, now + LATE)
        names = rng.sample(WAITERS, rng.randint(1, len(WAITERS)))
        pair.put_queue(queue, {name: rng.choice(scores) for name in names}, rng.choice((1, 4000)))
        time.sleep(0.003)
    else:
        pair.drop(rng.choice((lock, fence, lock, fence, DEPLOYMENT.held, queue)))


def some_commands(pair: Pair, many: int = 24) -> None:
    """Send that many random commands to both, from empty, and compare the keys at the end."""
    rng = pair.rng
    pair.clear()
    for number in range(many):
        if rng.random() < 0.3:
            _disturb(pair)
        command = _random_command(rng, pair.now // 1000 * 1000)  # as tickets in queues are
        argv: list[Any] = [number, *command.arguments()]
        if command.trusted:
            late = rng.choice((0, 0, 0, 0, 0, 60_000_000))
            argv += ["marker", pair.now + late if late else 0]
        pair.eval(command.name, list(command.keys()), argv)
    pair.compare()


def some_joins(pair: Pair, many: int = 12) -> None:
    """Send random joins to both, with markers of every kind."""
    rng = pair.rng
    pair.clear()
    for number in range(many):
        if rng.random() < 0.4:
            now = pair.tick() * 1000
            odd = ("", "marker", f"{RUN_IDS[0]} 12 {DEPLOYMENT.fingerprint} x", f"zz {now} p")
            ready = now + rng.choice((-5, 1_000_000, 10_000_000_000))
            known = f"{rng.choice(RUN_IDS)} {ready} {rng.choice((DEPLOYMENT.fingerprint, 'p'))}"
            pair.put(DEPLOYMENT.marker, rng.choice((*odd, known, known, known)), None)
        if rng.random() < 0.1:
            pair.drop(DEPLOYMENT.marker)
        how = rng.choice(("join", "join", "mark", "distrust", "trust", "reconfigure"))
        delay = round(DEPLOYMENT.restart_delay * 1_000_000)
        argv = [number, rng.choice(RUN_IDS), DEPLOYMENT.fingerprint, delay, how]
        pair.eval("join", [DEPLOYMENT.marker], argv)
    pair.compare()


def crowd(pair: Pair, many: int) -> None:
    """Set up an index and locks as they may be after a while, with unexpected values."""
    rng = pair.rng
    now = pair.tick()
    others = [b"n:%d" % number for number in range(many)]
    for member in rng.sample([*NAMES, *others], rng.randrange(len(NAMES) + many + 1)):
        left = rng.choice((-100_000, -1, 30_000, 30_000, 60_000 + rng.randrange(1000)))
        pair.index(member, float("inf") if rng.random() < 0.1 else float(now + left))
    for resource in rng.sample(RESOURCES, 2):
        value = rng.choice((*OTHERS, f"{TOKENS[0]} {{}}"))
        pair.put(DEPLOYMENT.lock(resource), value, rng.choice((1, 20_000, None)))
    time.sleep(0.003)
    if rng.random() < 0.3:
        pair.put_set(DEPLOYMENT.lock(rng.choice(RESOURCES)))


def main(argv: list[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.live.differential")
    parser.add_argument("--commands", type=int, default=100_000, help="commands to send (100,000)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the commands (1)")
    parser.add_argument("--server", help="path of its program")
    options = parser.parse_args(argv)
    with local_masters(1, binary=options.server) as (master,), master.client() as client:
        pair, done = Pair(client, Random(options.seed)), 0
        about = client.info("server")
        version = about.get("valkey_version") or about["redis_version"]
        began = time.perf_counter()
        while done < options.commands:
            try:
                some_commands(pair)
                some_joins(pair)
            except AssertionError as trace:
                sys.stdout.write(f"{trace}\n\nthe replies differ after {done:,} commands\n")
                return 1
            done += 36
            sys.stderr.write(f"\r{done:,} of {options.commands:,}")
        took = time.perf_counter() - began
    server = about.get("server_name", "redis")
    sys.stderr.write("\n")
    sys.stdout.write(
        f"{done:,} commands to {server} {version} and to the model, in {took:.0f} s, "
        f"seed {options.seed}: identical replies\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
