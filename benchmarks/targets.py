"""The targets, and whether a run has met them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.results import Results, Where

Values = Callable[[Results], list[float]]


@dataclass(frozen=True)
class Target:
    """One target: an upper (`most`) or lower limit `bound` in `unit`.

    `values` returns the figure of every round; their median counts. `profile` is the case of the
    workload `profiles` that shows where the time goes if the target is missed, and its key in
    `reasons.REASONS`.
    """

    work: str
    what: str
    bound: float
    values: Values
    most: bool = True
    unit: str = "×"
    profile: str = ""

    def measured(self, results: Results) -> float | None:
        """Return the median over the rounds; None if it was not measured."""
        values = self.values(results)
        return median(values) if values else None

    def has_failed(self, results: Results) -> bool:
        """Return whether a measurement that this target needs has failed."""
        asked = _Asked()
        self.values(asked)
        return any(results.has_failed(where) for where in asked.places)

    def met(self, value: float) -> bool:
        """Return whether a value meets the target."""
        return value <= self.bound if self.most else value >= self.bound


class _Asked(Results):
    """Results that note where figures are looked for."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[Where] = []

    def values(self, where: Where, figure: str) -> dict[int, float]:
        self.places.append(where)
        return {}


def ratio(ours: Where, theirs: Where, figure: str) -> Values:
    """Return the quotient of two contenders within each round."""
    return lambda results: results.ratios(ours, theirs, figure)


def compared(
    workload: str, setting: str, case: str, mine: str, other: str, figure: str = "p50_us"
) -> Values:
    """Return the quotient of two contenders in the same case."""
    return ratio(
        Where(workload, setting, case, mine), Where(workload, setting, case, other), figure
    )


def own(workload: str, setting: str, case: str, mine: str, figure: str) -> Values:
    """Return a figure itself."""
    where = Where(workload, setting, case, mine)
    return lambda results: list(results.values(where, figure).values())


def slope(mine: str, other: str) -> Values:
    """Return the cost of a further master (1 to 9), divided by that of another contender."""

    def rise(results: Results, name: str) -> dict[int, float]:
        one = results.values(Where("growth", "pin", "1", name), "p50_us")
        nine = results.values(Where("growth", "pin", "9", name), "p50_us")
        return {number: (nine[number] - one[number]) / 8 for number in one if number in nine}

    def values(results: Results) -> list[float]:
        ours, theirs = rise(results, mine), rise(results, other)
        return [ours[number] / theirs[number] for number in ours if theirs.get(number)]

    return values


def worst(parts: Sequence[Values], *, most: bool = True) -> Values:
    """Return the worst of several medians, because all of them must meet the target."""

    def values(results: Results) -> list[float]:
        medians = [median(each) for part in parts if (each := part(results))]
        return [max(medians) if most else min(medians)] if medians else []

    return values


FAULTS = ("1 hung", "2 hung", "back", "1 dead", "2 dead", "back again")


def _faults(name: str) -> list[Target]:
    work = "one and two of five masters hung, dead, back" + (
        ", asyncio" if name.endswith("async") else ""
    )

    def by_healthy(figure: str) -> Values:
        healthy = Where("faults", "free", "healthy", name)
        return worst([ratio(Where("faults", "free", p, name), healthy, figure) for p in FAULTS])

    def each(figure: str, *, most: bool = True) -> Values:
        return worst([own("faults", "free", p, name, figure) for p in FAULTS], most=most)

    return [
        Target(work, "success", 1.0, each("success"), False, ""),
        Target(
            work,
            "p50, worst phase, by its own healthy",
            1.1,
            by_healthy("p50_us"),
            profile="phases",
        ),
        Target(
            work, "longest pair, worst phase", 10_000, each("max_us"), unit=" µs", profile="faults"
        ),
        Target(
            "three of five hung" + (", asyncio" if name.endswith("async") else ""),
            "a refusal, once known",
            1_000,
            own("faults", "free", "3 hung", name, "p50_us"),
            unit=" µs",
        ),
    ]


def _rate(case: str, other: str, bound: float, setting: str = "free") -> Target:
    values = compared("threads", setting, case, "ours", other, "per_s")
    masters = ", stub masters" if setting == "stub" else ""
    work = f"{case} threads, distinct keys{masters}: pairs/s"
    return Target(work, f"by {other}", bound, values, False, profile="threads")


HOT_US = 45
"""The target of a pair without the kernel."""


def _targets() -> list[Target]:
    pair, refuse = "acquire + release, one thread", "refuse a held lock"
    cpu = "client CPU by floor"
    lines = [
        Target("the scripts of a pair, on one master", "processor time", 18,
               own("scripts", "pin", "one", "ours", "cpu_us"), unit=" µs", profile="scripts"),
        Target("the scripts of a pair, on one master", "by SET and compare-and-delete", 4.7,
               compared("scripts", "pin", "one", "ours", "floor SET", "cpu_us"), profile="scripts"),
        Target(pair, f"stub: {cpu}", 1.5,
               compared("pairs", "stub", "one", "ours", "floor", "cpu_us"), profile="pairs"),
        Target(pair, f"pin: {cpu}", 1.9,
               compared("pairs", "pin", "one", "ours", "floor", "cpu_us"), profile="pairs"),
        Target(pair, "pin: p50 by floor", 1.2,
               compared("pairs", "pin", "one", "ours", "floor"), profile="pairs"),
        Target(pair, "rtt: p50 by floor", 1.12,
               compared("pairs", "rtt", "one", "ours", "floor"), profile="pairs"),
        Target("the same, hot caches, no kernel", "client CPU", HOT_US,
               own("hot", "pin", "one", "ours", "cpu_us"), unit=" µs", profile="pairs"),
        Target("the same, hot caches, no kernel", "calls of Python and C", 300,
               own("hot", "pin", "one", "ours", "calls"), unit="", profile="pairs"),
        Target("the same, asyncio", "pin: p50 by aioredlock", 0.8,
               compared("pairs", "pin", "one", "ours async", "aioredlock"), profile="pairs async"),
        Target(refuse, "pin: p50 by floor", 2.0,
               compared("refusals", "pin", "one", "ours", "floor"), profile="refusals"),
        Target(f"{refuse} of the same process", "pin: p50", 10,
               own("refusals", "pin", "own", "ours", "p50_us"), unit=" µs", profile="refusals"),
        _rate("16", "floor", 0.65, "stub"),
        *(_rate(case, "floor", 0.65) for case in ("16", "32")),
        *(_rate(case, "redlock-py", 3) for case in ("16", "32")),
    ]  # fmt: skip
    lines.append(
        Target(
            "32 threads, distinct keys: pairs/s",
            "by 16 threads",
            1.0,
            ratio(
                Where("threads", "free", "32", "ours"),
                Where("threads", "free", "16", "ours"),
                "per_s",
            ),
            False,
            profile="threads",
        )
    )
    crowd, tasks = "20 processes with 8 threads each, distinct keys", "100 tasks, distinct keys"
    lines += [
        Target(crowd, "failed, of all", 0.001,
               own("crowd", "free", "20 × 8", "ours", "failed_share"), unit=""),
        Target(crowd, "pairs/s by redis-py", 0.8,
               compared("crowd", "free", "20 × 8", "ours", "redis-py", "per_s"), False,
               profile="crowd"),
        Target("20 processes with 30 tasks each, distinct keys", "failed, of all", 0.001,
               own("crowd", "free", "20 × 30", "ours async", "failed_share"), unit=""),
        Target(f"{tasks}, stub masters", "client CPU by floor async", 6,
               compared("tasks", "stub", "100", "ours async", "floor async", "cpu_us"),
               profile="tasks"),
        Target(tasks, "pairs/s", 6_000, own("tasks", "free", "100", "ours async", "per_s"),
               False, "", profile="tasks"),
        Target(tasks, "pairs/s by redis-py async", 1.0,
               compared("tasks", "free", "100", "ours async", "redis-py async", "per_s"),
               False, profile="tasks"),
        Target("hand-off, eight threads drain", "p50 by python-redis-lock", 1.6,
               compared("handoff", "free", "drain", "ours", "python-redis-lock"),
               profile="handoff"),
    ]  # fmt: skip
    for case, work, share, wait in (
        ("think", "eight processes, 5 ms between turns", 1.2, 30),
        ("greedy", "eight processes, no pause", 2, 300),
    ):
        figures = own("handoff", "free", case, "ours", "share")
        lines.append(
            Target(work, "turns of a process, most by fewest", share, figures, profile="handoff")
        )
        longest = own("handoff", "free", case, "ours", "longest_wait_ms")
        lines.append(Target(work, "longest wait", wait, longest, unit=" ms", profile="handoff"))
    lines += [*_faults("ours"), *_faults("ours async")]
    lines.append(
        Target("N = 1 to 9, pinned", "slope by floor", 0.75, slope("ours", "floor"),
               profile="growth")
    )  # fmt: skip
    for how in ("called", "served"):
        lines.append(
            Target(
                f"a view the middleware does not touch, {how}",
                "processor time of the server by the same without LockMiddleware",
                1.02,
                compared("views", "free", how, "bare", "bare, no LockMiddleware", "cpu_us"),
                profile="views",
            )
        )
    served = "a locked view, served: requests/s"
    lines += [
        Target(served, "by the same under cache.lock on one Redis", 1.0,
               compared("views", "free", "served", "locked", "cache.lock", "per_s"), False,
               profile="pairs"),
        Target(served, "by the bare view", 0.6,
               compared("views", "free", "served", "locked", "bare", "per_s"), False,
               profile="pairs"),
    ]  # fmt: skip
    lines.append(
        Target(
            "the replay of a view that takes 5 ms",
            "p50 by the view itself",
            1.0,
            compared("idempotency", "free", "called", "replay", "slow"),
        )
    )
    return lines


TARGETS = _targets()
