"""The Lua scripts and their model, on a real server and in memory, give the same replies."""

from __future__ import annotations

import re
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.backends.memory.keyspace import ScriptReply
from redlock_django.backends.memory.master import MemoryMaster
from redlock_django.engine.protocol.commands import Acquire
from redlock_django.engine.protocol.statuses import REFUSED
from tests.live import differential
from tests.live.differential import (
    DEPLOYMENT,
    GLOBS,
    MILLISECONDS,
    RESOURCES,
    Pair,
    crowd,
    some_commands,
    some_joins,
)

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2, 3))]
)
def test_the_model_answers_as_the_scripts_do(masters: list[LocalMaster], seed: int) -> None:
    with masters[0].client() as client:
        pair = Pair(client, Random(seed))
        for _ in range(120):
            some_commands(pair)


def test_an_index_of_another_type_leaves_no_lock(masters: list[LocalMaster]) -> None:
    ask = Acquire(
        deployment=DEPLOYMENT, resources=RESOURCES, value=f"{'a' * 32} {{}}", ttl=5.0, proposal=7
    )
    with masters[0].client() as client:
        pair = Pair(client, Random(0))
        pair.clear()
        pair.put(DEPLOYMENT.held, "not a set", None)
        pair.eval("acquire", ask.keys(), [1, *ask.arguments(), "marker", 0])
        pair.compare()
        assert client.dbsize() == 2


def test_the_model_joins_as_the_script_does(masters: list[LocalMaster]) -> None:
    with masters[0].client() as client:
        pair = Pair(client, Random(0))
        for _ in range(60):
            some_joins(pair)


@pytest.mark.parametrize("many", [3, 400])
def test_the_model_inspects_as_the_scripts_do(masters: list[LocalMaster], many: int) -> None:
    """Also where the index has grown out of the form in which a server gives it in one step."""
    rng = Random(many)
    with masters[0].client() as client:
        pair = Pair(client, rng)
        for _ in range(150 // many + 10):
            pair.clear()
            crowd(pair, many)
            for _ in range(6):
                most, last_first = rng.choice((0, 1, 2, 5, 1000)), rng.choice((0, 1))
                real, model = pair.ask("held", [DEPLOYMENT.held], [most, last_first])
                assert real == model, pair.transcript()
                pattern, step = rng.choice(GLOBS), rng.choice((1, 10, 1000))
                pair.walk("find", [DEPLOYMENT.held], pattern, step)
                pair.walk("scan", [], rng.choice(("*lock:*", "*:s", "*")), step)
                some = [rng.choice(RESOURCES) for _ in range(rng.choice((1, 3)))]
                keys = [*map(DEPLOYMENT.lock, some), *map(DEPLOYMENT.queue, some)]
                real, model = pair.ask("look", keys, [])
                for truth, said in zip(real[1::3], model[1::3], strict=True):
                    assert abs(truth - said) <= MILLISECONDS, pair.transcript()
                del real[1::3], model[1::3]
                assert real == model, pair.transcript()
            pair.compare()


def test_the_command_goes_on_for_so_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert differential.main(["--commands", "40"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"72 commands to (valkey|redis) \S+ and to the model", said)


def test_the_command_prints_the_trace_of_a_reply_that_differs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = MemoryMaster.eval

    def mutated(self: MemoryMaster, *asked: Any) -> ScriptReply:
        reply = honest(self, *asked)
        return [*reply[:1], 7, *reply[2:]] if reply[1] == REFUSED else reply

    monkeypatch.setattr(MemoryMaster, "eval", mutated)
    assert differential.main(["--commands", "400"]) == 1
    out = capsys.readouterr().out
    assert "  real  [" in out
    assert "the replies differ after" in out
