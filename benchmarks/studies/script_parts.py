"""The costs of the parts of a script, in instructions of a master.

`uv run python -m benchmarks script_parts` prints a table, for one master that runs one small
script after the other; Linux's `perf` must be installed and allowed to count. Instructions do not
depend on the processor's speed, nor on what else the machine does.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from hashlib import sha1

from benchmarks.contenders.floor_commands import TRUST
from benchmarks.targets.results import markdown
from benchmarks.targets.scripts import send, spelled
from redlock_django.testing import LocalMaster, local_masters
from redlock_django.wire.links.resp import pack

TIMES = 3000
KEY, FENCE, INDEX, NAME = "lock:#", "fence:#", "held", "order:#"
AGAIN = "redis.call('SET', KEYS[1], 'x', 'PX', '10000')"
SETS = "redis.call('SET', KEYS[1], 'x', 'NX', 'PX', '10000')"
LISTS = "redis.call('ZADD', KEYS[1], 'CH', 1790000000000, ARGV[1], -1, '')"

# What a part is called, a script that has it, and one that has not: their keys and arguments.
Script = tuple[str, list[str], list[str]]
PARTS: list[tuple[str, Script, Script]] = [
    ("a script that does nothing", ("return 1", [], []), ("", [], [])),
    ("a key that is always another", ("return 1", [KEY], []), ("return 1", [], [])),
    ("an argument that is always another", ("return 1", [], [NAME]), ("return 1", [], [])),
    ("an argument that is always the same", ("return 1", [], ["x"]), ("return 1", [], [])),
    ("tonumber of 16 digits", ("return tonumber(ARGV[1]) and 1", [], ["1790000000123456"]),
     ("return 1", [], ["1790000000123456"])),
    ("an array of 4 in reply, not 1 integer", ("return { 1, 2, 3, 4 }", [], []),
     ("return 1", [], [])),
    ("TIME", ("redis.call('TIME') return 1", [], []), ("return 1", [], [])),
    ("MGET of 5 keys",
     ("redis.call('MGET', unpack(KEYS)) return 1", ["1#", "2#", "3#", "4#", "5#"], []),
     ("return 1", ["1#", "2#", "3#", "4#", "5#"], [])),
    ("PTTL of an absent key", ("redis.call('PTTL', KEYS[1]) return 1", [KEY], []),
     ("return 1", [KEY], [])),
    ("SET of a new key, PX", (f"{SETS} return 1", [KEY], []), ("return 1", [KEY], [])),
    ("SET of an old key, PX", (f"{AGAIN} return 1", [FENCE[:-1]], []),
     ("return 1", [FENCE[:-1]], [])),
    ("GET", ("redis.call('GET', KEYS[1]) return 1", [FENCE[:-1]], []),
     ("return 1", [FENCE[:-1]], [])),
    ("DEL of a key with a TTL", (f"{SETS} redis.call('DEL', KEYS[1]) return 1", ["gone:#"], []),
     (f"{SETS} return 1", ["kept:#"], [])),
    ("ZADD of two members", (f"{LISTS} return 1", [INDEX], [NAME]), ("return 1", [INDEX], [NAME])),
    ("ZREM", (f"{LISTS} redis.call('ZREM', KEYS[1], ARGV[1]) return 1", [INDEX], [NAME]),
     (f"{LISTS} return 1", [INDEX], ["order"])),
]  # fmt: skip


def main() -> None:
    """Print the table."""
    with local_masters(1) as (master,):
        rows = [[name, f"{count / 1000:.1f}"] for name, count in measured(master)]
    print(markdown(["What", "Instructions in thousands"], rows))


def measured(master: LocalMaster) -> Iterator[tuple[str, float]]:
    """Yield each part and the instructions that it costs: first the whole pairs."""
    with (
        master.client() as client,
        socket.create_connection(("127.0.0.1", master.port)) as link,
    ):
        send(link, b"".join(TRUST), len(TRUST))
        for name, contender in (
            ("acquire and release", "ours"),
            ("SET NX PX and compare-and-delete", "floor SET"),
        ):
            yield name, counted(master, [spelled(contender, n) for n in range(TIMES)], 2)
        for name, having, lacking in PARTS:
            cost = 0.0
            for sign, (lua, keys, arguments) in ((1, having), (-1, lacking)):
                if lua:
                    client.script_load(lua)
                    cost += sign * counted(master, list(calls(lua, keys, arguments)), 1)
            yield name, cost


def calls(lua: str, keys: list[str], arguments: list[str]) -> Iterator[bytes]:
    """Yield the commands that call a script, each with another number where there is a #."""
    sha = sha1(lua.encode(), usedforsecurity=False).hexdigest()
    for number in range(TIMES):
        words = (word.replace("#", f"{number:05}") for word in (*keys, *arguments))
        yield pack("EVALSHA", sha, len(keys), *words)


def counted(master: LocalMaster, commands: list[bytes], replies: int) -> float:
    """Return the instructions of a master for each of these commands."""
    with socket.create_connection(("127.0.0.1", master.port)) as link:
        send(link, pack("PING"), 1)
        perf = subprocess.Popen(
            ["perf", "stat", "-x,", "-e", "instructions:u", "-p", str(master.process.pid)],
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(0.5)  # until it counts
        send(link, b"".join(commands), replies * len(commands))
        perf.send_signal(signal.SIGINT)
        return float(perf.communicate()[1].split(",")[0]) / len(commands)
