"""More clients than a name has slots, none of which waits: in how many rounds their calls end.

`uv run python -m tests.engine.oversubscription` prints this for a few loads over five masters, in a
simulated network whose messages take 0.5 ms on average. No fault happens. The judge of the
simulator is on: no call may be refused beside a slot that was free throughout.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from redlock_django.engine.errors import NotAcquired
from redlock_django.engine.steps import Pause
from tests.engine.clients import Client, Program
from tests.engine.simulator import Setup, Simulation

SETUP = Setup(masters=5, latency=0.0005, master_timeout=0.5, busy=1e9, off_masters=0.0)


class Load(NamedTuple):
    """So many clients of a name; each pauses and holds a slot for so many seconds on average."""

    clients: int
    limit: int
    pause: float
    hold: float


LOADS = (
    Load(6, 3, 0.01, 0.02), Load(8, 3, 0.01, 0.02), Load(16, 3, 0.01, 0.02),
    Load(24, 10, 0.01, 0.02), Load(8, 3, 0.002, 0.002),
)  # fmt: skip


def rounds(load: Load, seconds: float, seed: int = 0) -> tuple[Counter[int], Counter[int]]:
    """Return how many calls were granted, and how many refused, after so many rounds."""
    setup = replace(SETUP, clients=load.clients, limit=load.limit, seconds=seconds)
    simulation = Simulation(seed, setup)
    simulation.world.run(0.05)  # all clients connect
    granted, refused = Counter[int](), Counter[int]()
    for client in simulation.clients:
        client._program.close()
        client.start(_asking(client, simulation.resources[0], load, granted, refused))
    simulation.world.run(seconds)
    return granted, refused


def _asking(
    client: Client, name: str, load: Load, granted: Counter[int], refused: Counter[int]
) -> Program:
    """Acquire a slot, hold it, and release it, in a loop."""
    checker, rng = client.checker, client.rng
    while True:
        yield Pause(rng.expovariate(1 / load.pause))
        checker.asks(client.name, (name,), load.limit)
        try:
            lease = yield from client.store.acquire((name,), 2.0, 0.0, "{}", load.limit)
        except NotAcquired as error:
            checker.refused(client.name, 0.0, error, client.wire.master_timeout)
            refused[error.attempts] += 1
            continue
        finally:
            checker.asking.pop(client.name)
        granted[lease.attempts] += 1
        checker.granted(client._held(lease))
        yield Pause(rng.expovariate(1 / load.hold))
        checker.ended(lease)
        yield from client.store.release(lease)


def share(calls: Counter[int], most: int) -> float:
    """Return the part of the calls that ended after at most so many rounds."""
    return sum(many for took, many in calls.items() if took <= most) / calls.total()


def main() -> int:
    """Print a row for each load."""
    for load in LOADS:
        granted, refused = rounds(load, 10.0)
        parts = [
            f"{calls.total()} {what}: {share(calls, 1):.1%} in one round, {share(calls, 2):.1%} in "
            f"at most two, all in {max(calls)}"
            for what, calls in (("granted", granted), ("refused", refused))
        ]
        sys.stdout.write(f"{load}\n    {'; '.join(parts)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
