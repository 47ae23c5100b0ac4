"""The commands of a master in memory, beside a real server: scripts get the same answers."""

from __future__ import annotations

import time
from contextlib import ExitStack
from random import Random
from struct import pack
from typing import TYPE_CHECKING

import pytest

from redlock_django.backends.memory.commands import COMMANDS
from redlock_django.backends.memory.interpreter import interpreter
from redlock_django.backends.memory.keyspace import Keyspace

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live

# Answers the time, the type of an answer as Lua sees it, and the answer (of SCAN the found).
PROBE = """
local clock = redis.call('TIME')
local answer = redis.pcall(unpack(ARGV))
local kind = type(answer)
if kind ~= 'table' then
  return { clock[1], clock[2], kind, answer }
elseif answer.err then
  return { clock[1], clock[2], 'error', answer.err:match('^%S+') }
elseif answer.ok then
  return { clock[1], clock[2], 'string', answer.ok }
end
return { clock[1], clock[2], kind, unpack(answer) }
"""
NUMBERS = """
local a, b, c = struct.unpack('<ddd', ARGV[1])
return struct.pack('<i8i8c32', a + b, c, string.rep('x', 32))
"""
KEYS = ("a", "b", "lock:a")
MEMBERS = ("", "m", "n", "o:1", "\\x", "[n]")
VALUES = ("", "v", "12", "9" * 17)
SCORES = ("-4000", "0", "7", "7.5", "1790000000000", "5790000000000000", "+inf", "-inf")
NEVER, MILLISECONDS = 10_000_000, 50


def _command(rng: Random) -> list[str]:
    key, member, score = rng.choice(KEYS), rng.choice(MEMBERS), rng.choice(SCORES)
    least, most = (rng.choice(("", "(")) + rng.choice(SCORES) for _ in range(2))
    limit = rng.choice(([], ["LIMIT", "0", str(rng.choice((0, 1, 2, 100)))]))
    shown = rng.choice(([], ["WITHSCORES"]))
    ends = rng.choice(([], ["PX", str(rng.choice((2, NEVER)))]))
    pairs = [word for _ in range(rng.choice((1, 1, 2))) for word in (score, rng.choice(MEMBERS))]
    return rng.choice((
        ["DEL", *rng.sample(KEYS, rng.choice((1, 1, 1, 2)))],
        ["GET", key],
        ["MGET", *KEYS],
        ["PEXPIRE", key, str(rng.choice((2, NEVER)))],
        ["PTTL", key],
        ["PUBLISH", rng.choice(("heard", "unheard")), member],
        ["SET", key, rng.choice(VALUES), *rng.choice(([], [], ["NX"], ["XX"])), *ends],
        ["ZADD", key, *rng.choice(([], [], ["NX"], ["XX"], ["CH"])), *pairs],
        ["ZADD", key, *rng.choice(([], [], ["NX"], ["XX"], ["CH"])), *pairs],
        ["ZCOUNT", key, least, most],
        ["ZRANGE", key, str(rng.randint(-4, 4)), str(rng.randint(-4, 4)), *shown],
        ["ZRANGEBYSCORE", key, least, most, *shown, *limit],
        ["ZRANK", key, member],
        ["ZREM", key, *rng.sample(MEMBERS, rng.choice((1, 2)))],
    ))  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2, 3))]
)
def test_the_commands_answer_as_a_server_does(masters: list[LocalMaster], seed: int) -> None:
    rng, now, asked = Random(seed), 0, set()
    keyspace = Keyspace(lambda: now)
    keyspace.publish = lambda channel, message: int(channel == "heard")
    with ExitStack() as stack:
        client = stack.enter_context(masters[0].client())
        ear = client.pubsub()
        stack.callback(ear.close)
        ear.subscribe("heard")
        assert ear.get_message(timeout=60)
        probe = client.register_script(PROBE)
        trace: list[str] = []
        for number in range(3000):
            if number % 60 == 0:
                client.flushall()
                keyspace.clear()
                trace.clear()
            command = _command(rng)
            real = probe(args=command)
            now = int(real[0]) * 1_000_000 + int(real[1])
            argv = [word.encode() for word in command]
            memory = interpreter().run(PROBE, keyspace, [], argv)
            trace.append(f"{command}\n  server {real}\n  memory {memory}")
            truth, said = real[2:], memory[2:]
            lasts = command[0] == "PTTL" and min(truth[1], said[1]) > MILLISECONDS
            near = lasts and abs(truth[1] - said[1]) <= MILLISECONDS
            assert truth == said or near, "\n".join(trace)
            asked.add(argv[0])
            if "2" in command:
                time.sleep(0.005)  # the end of a key is not within a command
    assert asked == COMMANDS.keys() - {b"TIME"}


def test_numbers_are_packed_as_by_a_server(masters: list[LocalMaster]) -> None:
    argv = pack("<ddd", 1.79e15, 60000.0, -3.0)
    with masters[0].client() as client:
        real = client.eval(NUMBERS, 0, argv)
    assert interpreter().run(NUMBERS, Keyspace(lambda: 1), [], [argv]) == real
