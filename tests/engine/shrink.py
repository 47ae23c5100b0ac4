"""Make a failing seed smaller: fewer faults, clients and seconds while it still fails.

`uv run python -m tests.engine.shrink --seed 123` prints the transcript of the smallest setup
found, and the command that replays it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace

from tests.engine.simulator import Setup, Simulation, replay

SEEDS = 5  # seeds to try with each simpler setup, since the same seed runs differently in it


def failure(seed: int, setup: Setup) -> str:
    """Return the kind of error a seed ends with; "" if no promise is broken."""
    try:
        Simulation(seed, setup).run()
    except Exception as error:  # noqa: BLE001 - any error is a failure
        return type(error).__name__
    return ""


def simpler(setup: Setup) -> Iterator[Setup]:
    """Yield setups that are a little simpler, the much simpler ones first."""
    kinds = sorted(setup.faults)
    for size in (len(kinds), len(kinds) // 2, 1):
        for first in range(0, len(kinds), size or 1):
            left = kinds[:first] + kinds[first + size :] if size else kinds
            yield replace(setup, faults=frozenset(left))
    yield replace(setup, stalls=0.0)
    yield replace(setup, strikes=0.0)
    yield replace(setup, two=0.0)
    yield replace(setup, wrong_walls=0.0)
    yield replace(setup, off_masters=0.0)
    yield replace(setup, drifting=False)
    yield replace(setup, outsider=False)
    for limit in range(2, setup.limit):
        yield replace(setup, limit=limit)
    if setup.lower:
        yield replace(setup, lower=0.0)
    yield replace(setup, resources=1)
    for masters in (1, 2, 3, 5):
        yield replace(setup, masters=min(masters, setup.masters))
    for clients in range(1, setup.clients):
        yield replace(setup, clients=clients)
    for part in (0.1, 0.5, 0.8):
        yield replace(setup, seconds=round(max(0.2, setup.seconds * part), 2))


def shrunk(seed: int, setup: Setup | None = None) -> tuple[int, Setup]:
    """Return the seed and setup of the simplest run found that fails in the same way.

    Raise ValueError if the seed does not fail.
    """
    setup = setup or Simulation(seed).setup
    kind = failure(seed, setup)
    if not kind:
        raise ValueError(f"seed {seed} breaks no promise")
    while True:
        for candidate in simpler(setup):
            if candidate == setup:
                continue
            seeds = (seed, *range(SEEDS))
            found = next((other for other in seeds if failure(other, candidate) == kind), None)
            if found is not None:
                seed, setup = found, candidate
                break
        else:
            return seed, setup


def main(argv: list[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.shrink")
    parser.add_argument("--seed", type=int, required=True, help="a seed that fails")
    parser.add_argument("--permits", action="store_true", help="several clients may hold a name")
    options = parser.parse_args(argv)
    setup = Simulation(options.seed, permits=options.permits).setup
    try:
        sys.stdout.write(replay(*shrunk(options.seed, setup)) + "\n")
    except ValueError as error:
        parser.error(str(error))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
