"""The stores side by side in one run: `uv run --with django-pglock python -m benchmarks stores`.

In each round every contender of every store takes its turn: pairs of acquire and release, refusals,
hand-offs to a waiter in another process, and pairs in 16 threads at once. Then one server of each
store is killed during pairs of `lock()`; a server that is the only one is started again at once.

`--stores postgresql,sqlite` measures some of them. With `--add`, the rounds in --out are kept,
so that several short runs make one table. What is not installed is left out.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import machine
from benchmarks.harness.results import Results, Row
from benchmarks.harness.workload import Column, Table
from benchmarks.stores.client import OURS, THREADS, Client
from benchmarks.stores.servers import STORES, Store
from benchmarks.worker.figures import latencies

HAND_OFFS = 10  # of a contender in a round
SHOWN = ("date", "processor", "cores", "python", "load at the start", "others used", "took")

COLUMNS = (
    Column("a pair, µs", "here", "pair", "p50_us"),
    Column("a refusal, µs", "here", "refusal", "p50_us"),
    Column("a hand-off, ms", "here", "hand-off", "p50_us", scale=1e-3),
    Column(f"{THREADS} threads, pairs/s", "here", "threads", "per_s"),
    Column("longest gap after a kill, ms", "here", "kill", "max_us", scale=1e-3),
)


class Measured:
    """A running store, and its two client processes."""

    def __init__(self, title: str, store: Store, stack: ExitStack) -> None:
        self._title, self._store = title, store
        self._client = Client(store.place, stack, first=True)
        self._other = Client(store.place, stack)
        self.contenders = self._client.names
        for contender in self.contenders:  # connects, and lets a server in Java compile
            self._client.run("pairs", contender)
            self._other.run("pairs", contender)

    def title(self, contender: str) -> str:
        """Return the row of a contender."""
        return self._title if contender == OURS else f"{contender}, {self._title}"

    def rounds(self, contender: str) -> Iterator[tuple[str, dict[str, float]]]:
        """Yield the figures of a contender in each case."""
        yield "pair", latencies(self._client.run("pairs", contender))
        self._other.run("hold", contender)
        yield "refusal", latencies(self._client.run("refusals", contender))
        self._other.run("release", contender)
        yield "hand-off", latencies([self.hand_off(contender) for _ in range(HAND_OFFS)])
        yield "threads", {"per_s": self._client.run("threads", contender)}

    def hand_off(self, contender: str) -> float:
        """Return the seconds from the release in one process until another one has the lock."""
        self._other.run("hold", contender)
        self._client.ask("wait", contender)
        time.sleep(random.uniform(0.1, 0.15))  # until it waits; no fixed phase of one that polls
        released_at: float = self._other.run("release", contender)
        held_at: float = self._client.answer()
        return held_at - released_at

    def kill(self) -> dict[str, float]:
        """Kill a server during pairs, and return the longest gap."""
        assert self._store.kill is not None
        self._client.ask("outage", OURS)
        time.sleep(1)
        start = self._store.kill()
        if self._store.is_alone:
            start()
        longest: float = self._client.answer()
        if not self._store.is_alone:
            start()
        return {"max_us": longest * 1e6}

    @property
    def can_be_killed(self) -> bool:
        """Return whether the store has a server."""
        return self._store.kill is not None


def main() -> None:
    """Start the servers, measure, and print the table."""
    given = arguments()
    file = given.out / "stores.json" if given.out else None
    results = Results({"runs": []})
    if given.add and file and file.exists():
        results = Results.load(file)
    about, began = machine.describe(), time.monotonic()
    others = machine.Others()
    with ExitStack() as stack:
        measure(results, opened(given.stores, stack), given)
        about["others used"] = f"{others.share():.2f} processors"
    about["took"] = f"{time.monotonic() - began:.0f} s"
    results.about["runs"].append(about)
    print(page(results))
    if file:
        given.out.mkdir(parents=True, exist_ok=True)
        results.save(file)
        file.with_suffix(".md").write_text(page(results))


def opened(names: Sequence[str], stack: ExitStack) -> list[Measured]:
    """Start the servers of these stores; leave out what is not installed."""
    found = []
    for name in names:
        title, start = STORES[name]
        try:
            store = stack.enter_context(start())
        except FileNotFoundError as missing:
            print(f"{title} is left out: {missing}")
            continue
        found.append(Measured(title, store, stack))
    return found


def measure(results: Results, stores: Sequence[Measured], given: argparse.Namespace) -> None:
    """Add the rows of so many rounds, in which the contenders take turns, and of the kills."""
    first = 1 + max((row.round for row in results.rows), default=-1)
    for number in range(first, first + given.rounds):
        for store in stores:
            for contender in store.contenders:
                for case, figures in store.rounds(contender):
                    row = Row("stores", "here", case, store.title(contender), number, figures)
                    results.add(row)
    for number in range(first, first + given.kills):
        for store in stores:
            if store.can_be_killed:
                results.add(Row("stores", "here", "kill", store.title(OURS), number, store.kill()))


def page(results: Results) -> str:
    """Return the table: medians over all rounds."""
    runs = [
        ", ".join(f"{name} {run[name]}" for name in SHOWN if name in run)
        for run in results.about["runs"]
    ]
    table = Table("The stores side by side", COLUMNS).page(results, "stores")
    return "\n".join([*table, *runs, ""])


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks stores")
    add = parser.add_argument
    add("--stores", type=chosen, default=list(STORES), metavar="A,B", help=", ".join(STORES))
    add("--rounds", type=int, default=5)
    add("--kills", type=int, default=3, help="how often a server of each store is killed")
    add("--out", type=Path, metavar="FOLDER", help="write stores.json and stores.md there")
    add("--add", action="store_true", help="add to the rounds that are in --out")
    return parser.parse_args()


def chosen(text: str) -> list[str]:
    """Return the names of stores, or report those that there are."""
    names = text.split(",")
    if unknown := {*names} - {*STORES}:
        raise argparse.ArgumentTypeError(
            f"{', '.join(sorted(unknown))}: not one of {', '.join(STORES)}"
        )
    return names
