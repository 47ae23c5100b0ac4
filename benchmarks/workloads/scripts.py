"""The processor time of one master for a pair, pipelined: the scripts without a client.

For comparison, that of SET NX PX and compare-and-delete on the same master.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import hiredis

from benchmarks.floors.commands import DEPLOYMENT, HOLDER, TRUST, pair, plain_pair
from benchmarks.harness.results import Results, Where, written
from benchmarks.harness.workload import Reason, Target, Workload
from redlock_django.engine.protocol.commands import as_array

if TYPE_CHECKING:
    from benchmarks.harness.plan import Plan

PAIRS, BATCHES = 500, 6
OK = {b"OK", 1}  # the replies to SET, and the status of all others


def measure(plan: Plan, setting: str, case: str, name: str) -> dict[str, Any]:
    """Use the first master, pinned."""
    plan.masters.empty("pin")
    return {"cpu_us": cost(plan.masters.every[0], name)}


def cost(master: Any, name: str) -> float:
    """Return the µs of the processor that a master needs for a pair: the best batch counts."""
    best = float("inf")
    with master.client() as client, socket.create_connection(("127.0.0.1", master.port)) as link:
        send(link, b"".join(TRUST), len(TRUST))
        for batch in range(BATCHES):
            numbers = range(batch * PAIRS, batch * PAIRS + PAIRS)
            before = used(client)
            replies = send(link, b"".join(spelled(name, n) for n in numbers), 2 * PAIRS)
            if name == "ours":
                replies = [as_array(reply)[1] for reply in replies]
            if not {*replies} <= OK:
                raise RuntimeError(f"a master refused: {replies[:2]}")
            best = min(best, (used(client) - before) / PAIRS * 1e6)
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


def used(client: Any) -> float:
    """Return the seconds of the processor that the master's main thread has used."""
    info = client.info("cpu")
    return float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"])


def took(results: Results) -> str:
    """Return how fast this processor is beside the one of the target."""
    median = results.median(Where("scripts", "pin", "one", "floor SET"), "cpu_us")
    return "" if median is None else f"In this run they took {written(median)} µs."


PROCESSOR = Reason(
    "scripts",
    "The 18 µs were set on a processor on which SET and compare-and-delete took 3.8 µs; they "
    "are a quarter of the scripts, of which benchmarks/README.md shows each part.",
    "no index, or replies without the master's clock; both are promises",
    took,
)
WORK, BY_SET = "the scripts of a pair, on one master", "by SET and compare-and-delete"
OURS = Where("scripts", "pin", "one", "ours")

WORKLOAD = Workload(
    "scripts",
    settings=("pin",),
    cases=lambda setting: [("one", ("ours", "floor SET"))],
    measure=measure,
    fixed=True,
    targets=[
        Target(WORK, "processor time", 18, OURS.own("cpu_us"), unit=" µs", reason=PROCESSOR),
        Target(WORK, BY_SET, 4.7, OURS.by("floor SET", "cpu_us"), reason=PROCESSOR),
    ],
)
