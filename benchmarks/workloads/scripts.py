"""The processor time of one master for a pair, pipelined: the scripts without a client.

For comparison, that of SET NX PX and compare-and-delete on the same master.
"""

from __future__ import annotations

import socket
import time
from hashlib import sha1
from typing import Any

import hiredis

from benchmarks.conductor import Plan
from benchmarks.floors.blocking import FREE
from redlock_django.engine.protocol.commands import Acquire, Release, as_array, script
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.wire.link.resp import pack, pack_command, pack_parts

PAIRS, BATCHES = 500, 6
HOLDER = '{"host":"web-1","pid":12345,"app":"gunicorn","at":1790000000.123}'
OK = (b"OK", 1)  # the replies to SET and to compare-and-delete
MARKER = f"{'f' * 40} 5 x"


def run(plan: Plan) -> None:
    """Use the first master, pinned."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        plan.masters.empty(setting)
        return {"cpu_us": cost(plan.masters.every[0], name)}

    plan.interleaved("scripts", [("pin", "one", ("ours", "floor SET"))], measure)


def cost(master: Any, name: str) -> float:
    """Return the µs of the processor that a master needs for a pair: the best batch counts."""
    deployment, best = Deployment(names=("a",)), float("inf")
    with master.client() as client, socket.create_connection(("127.0.0.1", master.port)) as link:
        client.set(deployment.marker, MARKER)
        send(link, pack("SCRIPT", "LOAD", script("acquire")[0]), 1)
        send(link, pack("SCRIPT", "LOAD", script("release")[0]), 1)
        send(link, pack("SCRIPT", "LOAD", FREE), 1)
        for batch in range(BATCHES):
            numbers = range(batch * PAIRS, batch * PAIRS + PAIRS)
            spelled = pair if name == "ours" else plain_pair
            data = b"".join(spelled(deployment, number) for number in numbers)
            before = used(client)
            replies = send(link, data, 2 * PAIRS)
            if not all(
                as_array(reply)[1] == 1 if name == "ours" else reply in OK for reply in replies
            ):
                raise RuntimeError(f"a master refused: {replies[:2]}")
            best = min(best, (used(client) - before) / PAIRS * 1e6)
    return best


def pair(deployment: Deployment, number: int) -> bytes:
    """Return the bytes that acquire and release a lock."""
    about: dict[str, Any] = {
        "deployment": deployment,
        "resources": (f"order:{number:05}",),
        "value": f"{number:032x} {HOLDER}",
    }
    ask = Acquire(**about, ttl=10.0, proposal=time.time_ns() // 1000)
    tail = pack_parts(MARKER, 5)
    return pack_command(ask, number) + tail + pack_command(Release(**about), number)


def plain_pair(deployment: Deployment, number: int) -> bytes:
    """Return the bytes of SET NX PX and compare-and-delete for a lock."""
    key, value = deployment.lock(f"order:{number:05}"), f"{number:032x} {HOLDER}"
    sha = sha1(FREE, usedforsecurity=False).hexdigest()
    return pack("SET", key, value, "NX", "PX", 10_000) + pack("EVALSHA", sha, 1, key, value)


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


def used(client: Any) -> float:
    """Return the seconds of the processor that the master's main thread has used."""
    info = client.info("cpu")
    return float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"])
