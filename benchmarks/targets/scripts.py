"""The processor time of one master for a pair, pipelined: the scripts without a client.

For comparison, that of SET NX PX and compare-and-delete on the same master.
"""

from __future__ import annotations

import socket
from typing import Any

import hiredis

from benchmarks.contenders.floor_commands import DEPLOYMENT, HOLDER, TRUST, pair, plain_pair
from benchmarks.targets.lab import Lab, used
from benchmarks.targets.results import Row, Target
from redlock_django.engine.protocol.commands import decode

PAIRS, BATCHES = 500, 6
OK = {b"OK", 1}  # the replies to SET, and the status of all others


def measure(lab: Lab) -> None:
    """Measure a round, on the first master."""
    for name in lab.turns("ours", "floor SET"):
        figures = {"cpu_us": cost(lab.store.masters[0], name)}
        lab.results.add(Row("scripts", "one master", name, lab.round, figures))


def cost(master: Any, name: str) -> float:
    """Return the µs of the processor that a master needs for a pair: the best batch counts."""
    best = float("inf")
    with socket.create_connection(("127.0.0.1", master.port)) as link:
        send(link, b"".join(TRUST), len(TRUST))
        for batch in range(BATCHES):
            numbers = range(batch * PAIRS, batch * PAIRS + PAIRS)
            before = used(master)
            replies = send(link, b"".join(spelled(name, n) for n in numbers), 2 * PAIRS)
            if name == "ours":
                replies = [decode(reply).status for reply in replies]
            if not {*replies} <= OK:
                raise RuntimeError(f"a master refused: {replies[:2]}")
            best = min(best, (used(master) - before) / PAIRS * 1e6)
    return best


def spelled(name: str, number: int) -> bytes:
    """Return the bytes of a pair, or of SET and compare-and-delete for the same lock."""
    resource, token = f"order:{number:05}", f"{number:032x}"
    if name == "ours":
        return b"".join(pair(resource, token))
    return b"".join(plain_pair(DEPLOYMENT.lock(resource), f"{token} {HOLDER}"))


def send(link: socket.socket, data: bytes, replies: int) -> list[Any]:
    """Send commands and return their replies."""
    reader = hiredis.Reader()
    found: list[Any] = []
    link.sendall(data)
    while len(found) < replies:
        if (reply := reader.gets()) is False:
            reader.feed(link.recv(1 << 20))
        else:
            found.append(reply)
    return found


PROCESSOR = (
    "The 18 µs were set on a processor on which SET and compare-and-delete took 3.8 µs. "
    "`python -m benchmarks script_parts` shows each part; no index would help, which is a promise."
)
WORK = "the scripts of a pair, on one master"
PLACE = ("scripts", ["one master"], "cpu_us")
TARGETS = [
    Target(WORK, "processor time", 18, *PLACE, unit=" µs", why=PROCESSOR),
    Target(WORK, "by SET and compare-and-delete", 4.7, *PLACE, by="floor SET", why=PROCESSOR),
]
