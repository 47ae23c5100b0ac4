"""The costs of a lock, and the masters that a load needs: `python -m benchmarks capacity`.

Processor time is that of this process and of the masters' main threads, so other work on the
machine lengthens the run more than the figures. The tables of docs/explanation/capacity.md are its
output.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from contextvars import Context
from math import ceil
from typing import Any, NamedTuple

import django

from benchmarks.machine import load
from benchmarks.targets.lab import used
from benchmarks.targets.results import markdown
from redlock_django.testing import LocalMaster, local_masters

SIZES = (1, 3, 5)
BATCHES = 6
LONGEST = 3600.0  # seconds; no lock ends, and none is renewed, during the run

PLANNED = 3
"""The masters of an alias in the calculated table."""

USED = 0.5
"""The share of a core that is planned for: the other half is for bursts and the system."""

FENCE_TTL = 600  # seconds, the default
RATES = (10**3, 10**4, 10**5)


class Costs(NamedTuple):
    """The costs of locks, in µs of processor time and in bytes; `_master` is for each master."""

    pair: float
    pair_master: float
    extension: float
    extension_master: float
    held: float
    held_master: float
    fence_master: float


LABELS = (
    "acquire and release: the process, µs",
    "acquire and release: each master, µs",
    "extension: the process, µs",
    "extension: each master, µs",
    "held lock: the process, bytes",
    "held lock: each master, bytes",
    "fence that is left: each master, bytes",
)
"""The rows of the measured table, in the order of `Costs`."""


def main() -> None:
    """Measure with one, three and five masters, and print what follows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks capacity")
    parser.add_argument("--pairs", type=int, default=500, help="in each batch")
    parser.add_argument("--locks", type=int, default=5_000, help="how many are held at once")
    given = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    os.environ["SHOP_DATABASE"] = ":memory:"
    django.setup()
    print("load:", load(), flush=True)
    with local_masters(max(SIZES)) as masters:
        found = {size: costs(masters[:size], given.pairs, given.locks) for size in SIZES}
    print("load:", load(), flush=True)
    print(f"{measured(found)}\n\n{rates(found[PLANNED])}")


# Measured.


def costs(masters: Sequence[LocalMaster], pairs: int, locks: int) -> Costs:
    """Return what batches of `pairs` pairs and extensions, and `locks` held locks, cost."""
    from django.test import override_settings

    from redlock_django import lock
    from redlock_django.locking.services import locks as stores

    alias = {
        "MASTERS": [master.url for master in masters],
        "RESTART_DELAY": 0,
        "MASTER_TIMEOUT": 2.0,
        "CONNECT_TIMEOUT": 30.0,
        "MAX_TTL": LONGEST,
        "MAX_HOLD": 2 * LONGEST,
        "FENCE_TTL": 2 * LONGEST,
        "KEY_PREFIX": f"capacity-{len(masters)}",  # each size is a deployment of its own
    }

    def one_pair(number: int) -> None:
        with lock(f"pair:{number}"):
            pass

    with ExitStack() as stack:
        clients = [stack.enter_context(master.client()) for master in masters]
        stack.enter_context(override_settings(REDLOCK={"default": alias}))
        stack.callback(stores.close)
        for number in range(200):  # connects, loads the scripts, fills the caches
            one_pair(number)
        pair = _cost(one_pair, pairs, masters)
        stored = _memory(clients)
        tracemalloc.start()
        held: list[Any] = [lock(f"held:{n}", ttl=LONGEST) for n in range(locks)]
        for each in held:
            Context().run(each.acquire)  # as other threads and tasks would
        gc.collect()
        bytes_held = tracemalloc.get_traced_memory()[0] / locks
        tracemalloc.stop()
        bytes_stored = (_memory(clients) - stored) / locks
        extension = _cost(lambda n: held[n % locks].extend(LONGEST), pairs, masters)
        for each in held:
            each.release()
        bytes_left = (_memory(clients) - stored) / locks
    found = (*pair, *extension, bytes_held, bytes_stored, bytes_left)
    return Costs(*(round(each, 1) for each in found))


def _cost(
    action: Callable[[int], object], times: int, masters: Sequence[LocalMaster]
) -> tuple[float, float]:
    """Return the µs of processor time that one action costs this process, and each master.

    The best batch counts: other work on the machine evicts caches.
    """
    batches = []
    for batch in range(BATCHES):
        servers, process = sum(map(used, masters)), time.process_time()
        for number in range(batch * times, (batch + 1) * times):
            action(number)
        spent = time.process_time() - process
        servers = sum(map(used, masters)) - servers
        batches.append((spent / times * 1e6, servers / times / len(masters) * 1e6))
    return min(process for process, _ in batches), min(servers for _, servers in batches)


def _memory(clients: Sequence[Any]) -> float:
    """Return the bytes that a master uses, on average."""
    return sum(float(client.info("memory")["used_memory"]) for client in clients) / len(clients)


# Calculated.


def measured(found: Mapping[int, Costs]) -> str:
    """Return the table of what was measured."""
    heads = ["Cost", *(f"{size} master{'s' * (size > 1)}" for size in found)]
    rows = [
        [label, *(f"{each[index]:,.1f}" for each in found.values())]
        for index, label in enumerate(LABELS)
    ]
    return markdown(heads, rows)


def rates(cost: Costs) -> str:
    """Return the aliases, masters and cores for some numbers of locks per second."""
    rows = []
    for rate in RATES:
        aliases = ceil(rate * cost.pair_master / (USED * 1e6))
        row = [
            f"{rate:,}",
            f"{aliases:,}",
            f"{aliases * PLANNED:,}",
            _cores(rate * cost.pair),
            f"{rate * FENCE_TTL / aliases * cost.fence_master / 1e9:.1f} GB",
        ]
        rows.append(row)
    heads = ["Locks per second", "Aliases", "Masters", "Cores of processes"]
    return markdown([*heads, "Fences on each master"], rows)


def _cores(microseconds: float) -> str:
    """Return how many cores do this work in a second, with the planned share of each."""
    return f"{ceil(microseconds / (USED * 1e6)):,}"
