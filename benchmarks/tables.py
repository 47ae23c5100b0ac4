"""The tables of figures: one for each workload, a row for each contender."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.results import Results, Where, written
from benchmarks.targets import FAULTS
from benchmarks.workloads.handoff import COUNTED


@dataclass(frozen=True)
class Column:
    """One column of a table: a figure in a case, or its ratio to another contender's."""

    heading: str
    setting: str
    case: str
    figure: str
    by: str = ""
    scale: float = 1.0

    def cell(self, results: Results, workload: str, name: str) -> str:
        """The cell of a contender."""
        where = Where(workload, self.setting, self.case, name)
        if self.by:
            other = Where(workload, self.setting, self.case, self.by)
            ratios = results.ratios(where, other, self.figure)
            return written(median(ratios)) if ratios else ""
        value = results.median(where, self.figure)
        if value is None:
            return "failed" if results.has_failed(where) else ""
        return written(value * self.scale)


@dataclass(frozen=True)
class Table:
    """A table of one workload: a row for each contender; `note` says what its words mean."""

    title: str
    workload: str
    columns: Sequence[Column]
    note: str = ""

    def page(self, results: Results) -> Iterator[str]:
        """The table as Markdown, without columns of which nothing is known."""
        names = results.names("contender", workload=self.workload)
        failed = [each.contender for each in results.failures if each.workload == self.workload]
        names = list(dict.fromkeys([*names, *filter(None, failed)]))
        cells = {
            column: [column.cell(results, self.workload, name) for name in names]
            for column in self.columns
        }
        known = [column for column in self.columns if any(cells[column])]
        if not known:
            return
        yield f"## {self.title}\n"
        if self.note:
            yield f"{self.note}\n"
        lines = ["| | " + " | ".join(column.heading for column in known) + " |"]
        lines.append("|---" * (len(known) + 1) + "|")
        for row, name in enumerate(names):
            lines.append(f"| {name} | " + " | ".join(cells[c][row] for c in known) + " |")
        yield "\n".join(lines) + "\n"


def _latency(setting: str, *, ms: bool = False) -> list[Column]:
    unit, scale = ("ms", 1e-3) if ms else ("µs", 1.0)
    return [
        Column(f"{setting}: p50 {unit}", setting, "one", "p50_us", scale=scale),
        Column(f"p99 {unit}", setting, "one", "p99_us", scale=scale),
        Column("× floor", setting, "one", "p50_us", by="floor"),
    ]


def _cases(workload: str, cases: Sequence[str], heading: str, figure: str) -> list[Column]:
    setting = "pin" if workload == "growth" else "free"
    return [Column(heading.format(case), setting, case, figure) for case in cases]


TABLES = (
    Table(
        "Acquire and release without contention",
        "pairs",
        [*_latency("pin"), Column("client CPU µs", "pin", "one", "cpu_us"),
         Column("masters' CPU µs", "pin", "one", "servers_us"),
         Column("stub: client CPU µs", "stub", "one", "cpu_us"),
         *_latency("rtt", ms=True)],
    ),
    Table(
        "Refusal of a held lock",
        "refusals",
        [*_latency("pin"), *_latency("rtt", ms=True),
         Column("held by the same process, pin: p50 µs", "pin", "own", "p50_us")],
    ),
    Table(
        "Masters: p50 of a pair in µs, pinned",
        "growth",
        _cases("growth", ["1", "3", "5", "7", "9"], "N = {}", "p50_us"),
    ),
    Table(
        "Groups of three masters: 16 threads, distinct keys",
        "groups",
        [
            *_cases("groups", ["1", "2", "4"], "pairs/s, {}", "per_s"),
            *_cases("groups", ["1", "2", "4"], "CPU µs a pair, {}", "cpu_us"),
        ],
    ),
    Table(
        "Threads: pairs/s, distinct keys",
        "threads",
        [
            *_cases("threads", ["1", "2", "4", "8", "16", "32", "64"], "{}", "per_s"),
            Column("p99 ms at 32", "free", "32", "p99_us", scale=1e-3),
            Column("client CPU µs a pair at 32", "free", "32", "cpu_us"),
            Column("masters' CPU µs", "free", "32", "servers_us"),
            *(Column(f"stub: {n}", "stub", n, "per_s") for n in ("1", "16", "32")),
        ],
    ),
    Table(
        "Crowd: 20 processes with 8 threads or 30 tasks each, distinct keys",
        "crowd",
        [
            Column(f"{crowd}: {label}", "free", case, figure, scale=scale)
            for crowd, case in (("8 threads", "20 × 8"), ("30 tasks", "20 × 30"))
            for label, figure, scale in (
                ("pairs/s", "per_s", 1.0),
                ("failed", "failed", 1.0),
                ("p99 ms, worst process", "p99_us", 1e-3),
                ("client CPU µs a pair", "cpu_us", 1.0),
                ("masters' CPU µs", "servers_us", 1.0),
            )
        ],
    ),
    Table(
        "Tasks: pairs/s, distinct keys",
        "tasks",
        [
            *_cases("tasks", ["1", "10", "100", "1000", "10000"], "{}", "per_s"),
            Column("p50 ms at 100", "free", "100", "p50_us", scale=1e-3),
            Column("client CPU µs a pair at 100", "free", "100", "cpu_us"),
            Column("masters' CPU µs", "free", "100", "servers_us"),
            Column("stub: client CPU µs", "stub", "100", "cpu_us"),
        ],
    ),
    Table(
        "Hand-off to a waiter, held for 1 ms",
        "handoff",
        [
            Column("drain: p50 ms", "free", "drain", "p50_us", scale=1e-3),
            Column("p99 ms", "free", "drain", "p99_us", scale=1e-3),
            *(
                column
                for case in ("think", "greedy")
                for column in (
                    Column(f"{case}: p50 ms", "free", case, "p50_us", scale=1e-3),
                    Column("turns/s", "free", case, "per_s"),
                    Column("turns, most by fewest", "free", case, "share"),
                    Column("longest wait ms", "free", case, "longest_wait_ms"),
                )
            ),
        ],
        "*drain*: eight threads or tasks of one process queue up behind a holder, and each takes "
        "one turn. *think* and *greedy*: eight processes take turns, with a pause of 5 ms after "
        "each, and without. They are connected, and take turns for half a second, before the count "
        f"begins; it lasts {COUNTED:g} s at least and ends while all of them still ask. *most by "
        "fewest*: the turns of the process that got most in that time, by those of the one that "
        "got fewest (none: half a turn). *longest wait*: of all waits that lasted into that time.",
    ),
    Table(
        "Faults: p50 of a pair in ms, 50 ms for each master",
        "faults",
        [
            Column(phase, "free", phase, "p50_us", scale=1e-3)
            for phase in ("healthy", *FAULTS, "3 hung")
        ],
    ),
    Table(
        "Faults: share of pairs that succeed",
        "faults",
        _cases("faults", ["healthy", *FAULTS], "{}", "success"),
    ),
    Table(
        "Faults: longest pair in ms",
        "faults",
        [Column(phase, "free", phase, "max_us", scale=1e-3) for phase in ("healthy", *FAULTS)],
    ),
    Table(
        "Views: requests/s and processor time of the server, all in one process",
        "views",
        [
            Column("called in a loop", "free", "called", "per_s"),
            Column("× bare", "free", "called", "per_s", by="bare"),
            Column("served by gunicorn", "free", "served", "per_s"),
            Column("× bare", "free", "served", "per_s", by="bare"),
            Column("called: CPU µs", "free", "called", "cpu_us"),
            Column("served: CPU µs", "free", "served", "cpu_us"),
        ],
    ),
    Table(
        "Idempotent requests, p50; `slow` takes 5 ms, `replay` is its recorded answer",
        "idempotency",
        [
            Column("µs", "free", "called", "p50_us"),
            Column("× locked", "free", "called", "p50_us", by="locked"),
            Column("× slow", "free", "called", "p50_us", by="slow"),
        ],
    ),
)  # fmt: skip
