"""Run very many seeds, on every core and with progress.

`uv run python -m tests.engine.sweep --seeds 100000 [--first 0] [--jobs 2]` prints every failing
seed with the command that replays it, and a digest of all runs. The digest stays the same as long
as neither the engine, the simulator nor the range of seeds changes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from hashlib import sha256
from typing import NamedTuple

from tests.engine.simulator import Simulation, command

CHUNK = 100  # seeds that run together


class Chunk(NamedTuple):
    """Some seeds: digest, states reached, errors of failing seeds."""

    first: int
    seeds: int
    digest: str
    seen: dict[str, int]
    failing: dict[str, str]


def run(first: int, seeds: int, permits: bool = False) -> Chunk:
    """Run some seeds, one after the other."""
    digest, seen, failing = sha256(), Counter[str](), {}
    gc.disable()  # a chunk is short: its reference cycles can wait until the end
    for seed in range(first, first + seeds):
        simulation = Simulation(seed, permits=permits)
        end = ""
        try:
            simulation.run()
        except Exception as error:  # noqa: BLE001 - the other seeds go on
            end = failing[str(seed)] = f"{type(error).__name__}: {error}"
        seen += simulation.world.seen
        summary = [seed, end, sorted(simulation.world.seen.items())]
        summary += [sorted(simulation.checker.fences.items()), simulation.world.now]
        digest.update(json.dumps(summary).encode())
    gc.enable()
    gc.collect()
    return Chunk(first, seeds, digest.hexdigest(), dict(seen), failing)


def sweep(first: int, seeds: int, jobs: int, permits: bool = False) -> Iterator[Chunk]:
    """Yield every chunk when it is finished."""
    end = first + seeds
    with ProcessPoolExecutor(jobs) as pool:
        running = [
            pool.submit(run, at, min(CHUNK, end - at), permits) for at in range(first, end, CHUNK)
        ]
        yield from (future.result() for future in as_completed(running))


def main(argv: list[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.sweep")
    parser.add_argument("--seeds", type=int, default=100_000, help="seeds to run (100000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--permits", action="store_true", help="several clients may hold a name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args(argv)
    began, chunks, count = time.perf_counter(), list[Chunk](), 0
    for chunk in sweep(options.first, options.seeds, options.jobs, options.permits):
        chunks.append(chunk)
        count += chunk.seeds
        for seed, end in chunk.failing.items():
            again = command(int(seed), permits=options.permits)
            sys.stdout.write(f"seed {seed}: {end}\n    {again}\n")
        pace = count / (time.perf_counter() - began)
        sys.stderr.write(f"\r{count:,} of {options.seeds:,} seeds, {pace:.0f}/s ")
        sys.stderr.flush()
    sys.stderr.write("\n")
    seen: Counter[str] = Counter()
    for chunk in chunks:
        seen.update(chunk.seen)
    for what, times in sorted(seen.items()):
        sys.stdout.write(f"{times:14,} {what}\n")
    failing = sum(len(chunk.failing) for chunk in chunks)
    digests = "".join(chunk.digest for chunk in sorted(chunks))
    sys.stdout.write(f"{count:,} seeds from {options.first:,}, {failing} failing\n")
    sys.stdout.write(f"digest {sha256(digests.encode()).hexdigest()}\n")
    return 1 if failing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
