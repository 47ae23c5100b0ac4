"""The table of a user: what a lock adds to a request, beside what he would use instead.

In each round every contender of every store takes its turn. Then one server of each store is killed
during pairs of `lock()`; one that is alone is started again at once. Medians of the rounds count.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median

from benchmarks.contenders import CONTENDERS, Place
from benchmarks.servers.stores import STORES, Store
from benchmarks.worker.figures import latencies
from benchmarks.worker.process import Worker

ASKED = ("redis5", "redis1", "postgresql", "zookeeper1")
"""The stores of the table, unless others are chosen."""

ADDS, REFUSED, HANDED, RATE, GAP = QUESTIONS = (
    "adds to a request, ms",
    "a refusal, ms",
    "a waiter has it after, ms",
    "locks/s, 16 threads",
    "longest gap after a kill, ms",
)
THREADS = 16
HAND_OFFS = 4  # of a contender in a round
OUTAGE = 3.0  # seconds of pairs around the death of a server

Figures = defaultdict[str, defaultdict[str, list[float]]]
"""The figures of all rounds, by row and question."""


class Measured:
    """A contender on a store, in two client processes."""

    def __init__(self, title: str, name: str, place: Place, stack: ExitStack) -> None:
        self.title = f"**{title}**" if name == "ours" else f"{title}: {name}"
        self._client, self._other = (Worker(name, place, stack) for _ in range(2))
        if name == "ours":
            self._client.do("requests.prepare")

    def warm_up(self) -> None:
        """Connect, and let a server in Java compile."""
        for worker in (self._client, self._other):
            worker.do("pairs.pairs", seconds=0.2)

    def round(self, figures: Figures, seconds: float) -> None:
        """Add the figures of one round."""
        row = figures[self.title]
        request = self._client.do("requests.locked", seconds=seconds)
        row[ADDS].append(request["locked"] / 1000)
        self._other.do("refusals.hold")
        refused = self._client.do("refusals.refusals", seconds=seconds / 2, warm_up=0.05)
        self._other.do("refusals.release")
        row[REFUSED].append(refused["p50_us"] / 1000)
        took = [self._hand_off() for _ in range(HAND_OFFS)]
        row[HANDED].append(latencies(took)["p50_us"] / 1000)
        many = self._client.do("crowds.pairs", count=THREADS, seconds=seconds)
        row[RATE].append(many["per_s"])
        if any(said.get("overlaps") or said.get("failed") for said in (request, refused, many)):
            raise RuntimeError(f"{self.title} did not exclude or failed: {refused} {many}")

    def _hand_off(self) -> float:
        """Return the seconds from the release in one process until another one has the lock."""
        self._other.do("refusals.hold")
        self._client.ask("refusals.wait")
        time.sleep(random.uniform(0.1, 0.15))  # until it waits; no fixed phase of one that polls
        released_at: float = self._other.do("refusals.release")
        held_at: float = self._client.answer()
        return held_at - released_at

    def outage(self, store: Store) -> float:
        """Kill a server during pairs, and return the longest gap in ms."""
        assert store.kill is not None
        self._client.ask("faults.outage", seconds=OUTAGE)
        time.sleep(OUTAGE / 3)
        start = store.kill()
        if store.is_alone:
            start()
        longest: float = self._client.answer(OUTAGE)
        if not store.is_alone:
            start()
        return longest * 1000

    def beside_hung(self, store: Store, figures: Figures, seconds: float) -> None:
        """Add the figures while two of five masters hang."""
        row = figures["the same, two of them hung"]
        for master in store.masters[:2]:
            master.pause()
        self._client.do("faults.without", down=2)
        self._client.do("pairs.pairs", seconds=seconds, warm_up=0.5)  # finds out that they hang
        row[ADDS].append(self._client.do("requests.locked", seconds=seconds)["locked"] / 1000)
        row[RATE].append(self._client.do("crowds.pairs", count=THREADS, seconds=seconds)["per_s"])
        for master in store.masters[:2]:
            master.resume()
        self._client.do("faults.without", down=0)


def posts(place: Place, figures: Figures, rounds: int, seconds: float) -> None:
    """Add what idempotency adds to a POST of one row, on a database."""
    [(alias, entry)] = place.settings["DATABASES"].items()
    settings = {**place.settings, "DATABASES": {alias: {**entry, "ATOMIC_REQUESTS": True}}}
    rows = {
        "idempotent": "**a POST with `@idempotent`**, PostgreSQL",
        "replay": "**its replay**",
        "own-key": "a POST that stores a unique key itself",
    }
    with ExitStack() as stack:
        worker = Worker("ours", Place(settings), stack)
        for _ in range(rounds):
            said = worker.do("requests.posts", seconds=2 * seconds)
            for name, title in rows.items():
                figures[title][ADDS].append(said[name] / 1000)


def measure(names: Sequence[str], rounds: int, seconds: float, say: Callable[[str], None]) -> str:
    """Start the servers, measure, and return the table as Markdown."""
    figures: Figures = defaultdict(lambda: defaultdict(list))
    with ExitStack() as stack:
        found: list[tuple[Store, list[Measured]]] = []
        for name in names:
            title, start = STORES[name]
            say(f"{title} ...")
            try:
                store = stack.enter_context(start())
            except FileNotFoundError as missing:
                say(f"{title} is left out: {missing}")
                continue
            own = [each for each in store.contenders if CONTENDERS[each].is_installed]
            measured = [Measured(title, each, store.place, stack) for each in own]
            for one in measured:
                one.warm_up()
            found.append((store, measured))
        for number in range(rounds):
            say(f"round {number + 1} of {rounds} ...")
            for store, measured in found:
                for one in measured:
                    one.round(figures, seconds)
                    if one is measured[0] and len(store.masters) == 5:
                        one.beside_hung(store, figures, seconds)
        for store, (ours, *_) in found:
            if "postgresql" in str(store.place.settings):
                posts(store.place, figures, rounds, seconds)
            if store.kill:
                figures[ours.title][GAP].append(ours.outage(store))
    return table(figures)


def table(figures: Figures) -> str:
    """Return the table, as wide as its cells."""
    heads = ["where the locks are, and what is used", *QUESTIONS]
    rows = [[title, *(cell(row[each]) for each in QUESTIONS)] for title, row in figures.items()]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [
        " | ".join(
            text.rjust(width) if number else text.ljust(width)
            for number, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in (heads, *rows)
    ]
    lines.insert(
        1, "|".join(["-" * (widths[0] + 2), *("-" * (each + 1) + ":" for each in widths[1:])])
    )
    return "\n".join(
        f"| {line} |" if place != 1 else f"|{line}|" for place, line in enumerate(lines)
    )


def cell(values: Sequence[float]) -> str:
    """Return the median of the rounds, empty if there are none."""
    if not values:
        return ""
    value = median(values)
    return (
        f"{value:,.0f}"
        if abs(value) >= 100
        else f"{value:.2f}"
        if abs(value) < 10
        else f"{value:.1f}"
    )
