"""The Lua scripts and their model, on a real server and in memory: the same answers?

What a user runs is the Lua; the simulator and the memory backend trust the model. Random
commands go to both, and between them the keys are set to what nobody would expect there.
"""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.backends.memory import MemoryMaster
from redlock_django.engine.commands import (
    COMMANDS,
    Acquire,
    Command,
    Confirm,
    Extend,
    Heal,
    Release,
    Terms,
    script,
)

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live

TERMS = Terms(names=("a", "b", "c"), max_ttl=30, max_clock_skew=0.5, fence_ttl=100)
RESOURCES = ("r", "s", "t")
TOKENS = ("a" * 32, "b" * 32, "C0" * 16)
OTHERS = ("plain", "", "a" * 32, f"{'d' * 32} {{}}", f"{'d' * 31} {{}}", f"{'g' * 32} {{}}")
FENCES = ("abc", "", "0x10", " 12 ", "nan", "-5", "1e3", "0", "7", "9" * 16, "9" * 17, "12\n")
RUN_IDS = ("1" * 40, "2" * 40)
MILLISECONDS = 3  # what two readings of one remaining time may differ by


class Pair:
    """One real server and one model, which is given the time that the real one answered."""

    def __init__(self, client: Any, luck: Random) -> None:
        self.client = client
        self.luck = luck
        self.now = 0
        self.model = MemoryMaster(lambda: self.now)
        self.story: list[str] = []
        for name in (*(command.name for command in COMMANDS), "join"):
            client.script_load(script(name)[0])

    def clear(self) -> None:
        """Both empty, and trusted."""
        self.client.flushall()
        self.model.strings.clear()
        self.model.sets.clear()
        self.story.clear()
        self.put(TERMS.marker, "marker", None)

    def tick(self) -> int:
        """The server's clock, in ms."""
        seconds, micros = self.client.time()
        self.now = seconds * 1_000_000 + micros
        return self.now // 1000

    def put(self, key: str, value: str, left: int | None) -> None:
        """A string, for so many ms or for ever, whatever was there."""
        self.story.append(f"SET {key} {value!r} {left}")
        until = self.tick() + left if left is not None else None
        self.client.delete(key)
        self.client.set(key, value, pxat=until)
        self.model.sets.pop(key, None)
        self.model.strings[key] = (value.encode(), float("inf") if until is None else until)

    def put_set(self, key: str) -> None:
        """A key of another type."""
        self.story.append(f"ZADD {key}")
        self.client.delete(key)
        self.client.zadd(key, {"x": 9e15})
        self.model.strings.pop(key, None)
        self.model.sets[key] = {b"x": 9e15}

    def drop(self, key: str) -> None:
        """No such key."""
        self.story.append(f"DEL {key}")
        self.client.delete(key)
        self.model.strings.pop(key, None)
        self.model.sets.pop(key, None)

    def eval(self, name: str, keys: list[str], argv: list[Any]) -> None:
        """Ask both; the answers must be the same, but for a few ms of a remaining time."""
        real = self.client.evalsha(script(name)[1], len(keys), *keys, *argv)
        self.now = real[2]
        model = self.model.eval(name, keys, argv)
        self.story.append(f"{name} {keys} {argv}\n  real  {real}\n  model {model}")
        assert len(real) == len(model), self.told()
        for place, (truth, said) in enumerate(zip(real, model, strict=True)):
            left = name != "join" and real[1] == 0 and place == 4
            near = left and abs(truth - said) <= MILLISECONDS
            assert truth == said or near, self.told()

    def compare(self) -> None:
        """What stands on both afterwards is the same too."""
        self.tick()
        found = {key.decode() for key in self.client.scan_iter()}
        kept = {key for key in list(self.model.strings) if self.model.get(key) is not None}
        sets = {key for key, members in self.model.sets.items() if members}
        assert found == kept | sets, self.told()
        for key in kept:
            assert self.client.get(key) == self.model.get(key), self.told()
            until = self.client.execute_command("PEXPIRETIME", key)
            expected = self.model.strings[key][1]
            never = until == -1 and expected == float("inf")
            assert never or abs(until - expected) <= MILLISECONDS, (key, self.told())
        for key in sets:
            real = dict(self.client.zrange(key, 0, -1, withscores=True))
            model = self.model.sets[key]
            assert real.keys() == model.keys(), self.told()
            for member, score in real.items():
                same = score == model[member] or abs(score - model[member]) <= MILLISECONDS
                assert same, self.told()

    def told(self) -> str:
        """Everything that was done, for a failure's message."""
        return "\n".join(self.story)


def _said(luck: Random, now: int) -> Command:
    resources = tuple(luck.sample(RESOURCES, luck.choice((1, 1, 2, 3))))
    value = f"{luck.choice(TOKENS)} {{}}"
    common: dict[str, Any] = {"terms": TERMS, "resources": resources, "value": value}
    ttl = luck.choice((5.0, 20.0, 30.0))
    fences = tuple(now + luck.choice((-3_000_000, 0, 400_000, 2_000_000)) for _ in resources)
    kind = luck.choice((Acquire, Acquire, Confirm, Extend, Heal, Release))
    if kind is Acquire:
        return Acquire(**common, ttl=ttl, proposal=max(fences))
    if kind is Confirm:
        return Confirm(**common, fences=fences)
    if kind is Extend:
        return Extend(**common, ttl=ttl)
    if kind is Heal:
        return Heal(**common, ttl=ttl, fences=fences)
    return Release(**common, bury=luck.random() < 0.2)


def _disturb(pair: Pair) -> None:
    luck = pair.luck
    lock, fence = TERMS.lock(luck.choice(RESOURCES)), TERMS.fence(luck.choice(RESOURCES))
    what = luck.randrange(11)
    if what == 0:
        pair.put(lock, luck.choice(OTHERS), luck.choice((4000, 400_000, None)))
    elif what == 1:
        pair.put(lock, f"{luck.choice(TOKENS)} {{}}", luck.choice((1, 4000, 400_000, None)))
        time.sleep(0.003)
    elif what == 2:
        pair.put(fence, luck.choice(FENCES), None)
    elif what == 3:
        ahead = luck.choice((900_000, 5_000_000))
        pair.put(fence, str(pair.tick() * 1000 + ahead), 50_000)
    elif what == 4:
        pair.put_set(luck.choice((lock, fence)))
    elif what == 5:
        pair.put(TERMS.held, "not a set", None)
    elif what == 6:
        pair.put(TERMS.tomb(luck.choice(TOKENS)), "1", luck.choice((1, 5000)))
        time.sleep(0.003)
    elif what == 7:
        pair.put(TERMS.marker, luck.choice(("marker", "marker", "another")), None)
    else:
        pair.drop(luck.choice((lock, fence, lock, fence, TERMS.held)))


@pytest.mark.parametrize("seed", range(4))
def test_the_model_answers_as_the_scripts_do(masters: list[LocalMaster], seed: int) -> None:
    luck = Random(seed)
    with masters[0].client() as client:
        pair = Pair(client, luck)
        for _ in range(120):
            pair.clear()
            for number in range(24):
                if luck.random() < 0.3:
                    _disturb(pair)
                command = _said(luck, pair.now)
                argv: list[Any] = [number, *command.arguments()]
                if command.trusted:
                    late = luck.choice((0, 0, 0, 0, 0, 60_000_000))
                    argv += ["marker", pair.now + late if late else 0]
                pair.eval(command.name, list(command.keys()), argv)
            pair.compare()


def test_the_model_joins_as_the_script_does(masters: list[LocalMaster]) -> None:
    luck = Random(0)
    with masters[0].client() as client:
        pair = Pair(client, luck)
        for _ in range(60):
            pair.clear()
            for number in range(12):
                if luck.random() < 0.4:
                    now = pair.tick() * 1000
                    odd = ("", "marker", f"{RUN_IDS[0]} 12 {TERMS.fingerprint} x", f"zz {now} p")
                    ready = now + luck.choice((-5, 1_000_000, 10_000_000_000))
                    known = (
                        f"{luck.choice(RUN_IDS)} {ready} {luck.choice((TERMS.fingerprint, 'p'))}"
                    )
                    pair.put(TERMS.marker, luck.choice((*odd, known, known, known)), None)
                if luck.random() < 0.1:
                    pair.drop(TERMS.marker)
                how = luck.choice(("join", "join", "distrust", "trust", "reconfigure"))
                delay = round(TERMS.restart_delay * 1_000_000)
                argv = [number, luck.choice(RUN_IDS), TERMS.fingerprint, delay, how]
                pair.eval("join", [TERMS.marker], argv)
            pair.compare()
