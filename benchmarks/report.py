"""From results to benchmarks.json, benchmarks.md and benchmarks.svg."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.contenders import CONTENDERS
from benchmarks.picture import draw
from benchmarks.results import Results, Where
from benchmarks.targets import FAULTS, TARGETS, WOULD, Target

TITLE = """\
# How fast it is
"""

INTRODUCTION = """\
A lock over five masters should cost one round trip and not five, under load and with masters
down. `uv run python -m benchmarks` measures this, compares it with other libraries and with bare
sockets, and writes this page ([how it measures](../benchmarks/README.md)). Ratios are taken within
a round, and the median over the rounds is shown. Every job checks that its locks exclude each
other.
"""

DROPPED = """\
Earlier pages also compared with a floor that sends plain SET, beside masters on the same processor.
Such a ratio mixes two costs: what the client does, and what the scripts do for fences, index and
trust. Now the client is measured beside masters that cost nothing (*stub*), and the scripts by
themselves.
"""

REDSYNC = """\
redsync (Go) is not run here. An earlier measurement on a similar machine had its fail-fast variant
at 0.67 to 0.77 × (pinned) and 1.04 × (rtt) of the plain SET floor, and at 8 000 pairs/s with 32
threads.
"""


def write(results: Results, folder: Path) -> None:
    """Write the three files into a folder, and the targets to the terminal."""
    folder.mkdir(parents=True, exist_ok=True)
    results.save(folder / "benchmarks.json")
    (folder / "benchmarks.svg").write_text(draw(results))
    (folder / "benchmarks.md").write_text(markdown(results))
    print(targets(results))
    print(f"written to {folder}/benchmarks.md, .json and .svg")


def markdown(results: Results) -> str:
    """The whole page."""
    parts = [
        TITLE,
        measured(results),
        INTRODUCTION,
        "![Figures of the last run](benchmarks.svg)\n",
        "## The machine\n",
        machine(results),
        "## Targets\n",
        targets(results),
        DROPPED,
        "\n".join(missed(results)),
        "## How it grows\n",
        "\n".join(f"- {line}" for line in growth(results)) + "\n",
        *(text for table in TABLES for text in table.written(results)),
        "## Contenders\n",
        *who(results),
    ]
    return "\n".join(part for part in parts if part)


def measured(results: Results) -> str:
    """Return when this was measured, and whether the machine had other work."""
    ends = [str(results.about.get(f"load at the {end}", "0")) for end in ("start", "end")]
    # Over the last minutes before the start, and over the run at its end.
    before, after = float(ends[0].split()[0]), float(ends[1].split()[-1])
    cores = results.about.get("cores", 1)
    date = results.about.get("date", "an unknown date")
    if max(before, after) <= cores + 1:
        return f"Measured on {date}, on a quiet machine.\n"
    return (
        f"Measured on {date}. **The machine was busy with other work** (load {before:g} before, "
        f"{after:g} at the end, on {cores} cores): latencies are too long, ratios scatter widely "
        "(see the rounds in brackets), and it is not certain which targets are met.\n"
    )


def machine(results: Results) -> str:
    """Return the description of the machine and the run."""
    lines = []
    for name, value in results.about.items():
        if name == "peers":
            value = ", ".join(f"{peer} {version}" for peer, version in value.items())
        if name == "left out":
            value = "; ".join(f"{peer} ({why})" for peer, why in value.items())
        if value:
            lines.append(f"- {name}: {value}")
    looks = sum(row.figures.get("looks", 0) for row in results.rows)
    overlaps = sum(row.figures.get("overlaps", 0) for row in results.rows)
    lines.append(f"- checks of mutual exclusion: {_number(looks)}, overlaps: {overlaps}")
    lines += [f"- **trouble**: {trouble}" for trouble in results.troubles]
    return "\n".join(lines) + "\n"


def targets(results: Results) -> str:
    """The table of targets; those that were not measured are left out."""
    lines = ["| Work | Figure | Target | Measured (rounds) | Met |", "|---|---|---|---|---|"]
    met = total = 0
    for target in TARGETS:
        value = target.measured(results)
        if value is None:
            continue
        total += 1
        met += target.met(value)
        spread = target.values(results)
        between = f" ({_number(min(spread))} to {_number(max(spread))})" if len(spread) > 1 else ""
        bound = f"{'≤' if target.most else '≥'} {_number(target.bound)}{target.unit}"
        verdict = "yes" if target.met(value) else "**no**"
        lines.append(
            f"| {target.work} | {target.what} | {bound} | "
            f"{_number(value)}{target.unit}{between} | {verdict} |"
        )
    return "\n".join([*lines, "", f"{met} of {total} met.", ""])


def missed(results: Results) -> Iterator[str]:
    """Why the targets that were missed were missed, and what would help."""
    groups: dict[str, list[Target]] = {}
    for target in TARGETS:
        value = target.measured(results)
        if value is not None and not target.met(value):
            groups.setdefault(target.profile, []).append(target)
    if not groups:
        return
    yield "## Not met\n"
    for profile, missing in groups.items():
        for target in missing:
            yield f"- {target.work}, {target.what}: {_number(target.measured(results) or 0)}"
        found = list(results.find(workload="profiles", case=profile))
        if found:
            yield f"\n  cProfile of {profile}: {_profile(found[-1].figures['profile'])}"
        yield f"\n  {WOULD.get(profile, 'Not expected: it was met before.')}\n"


# Where the kernel is entered; wire/link.py sends within list.extend.
_KERNEL = re.compile(r"poll of|of _socket.socket|extend of list")


def _profile(lines: list[tuple[float, str]]) -> str:
    """The share of the kernel, then of our files, then of the rest of Python."""
    kernel = sum(share for share, name in lines if _KERNEL.search(name))
    files: defaultdict[str, float] = defaultdict(float)
    for share, name in lines:
        if not _KERNEL.search(name):
            files[name.partition(":")[0] if ":" in name else "functions in C"] += share
    ranked = sorted(files.items(), key=lambda item: -item[1])[:9]
    rest = ", ".join(f"`{name}` {share:.0%}" for name, share in ranked)
    return f"{kernel:.0%} of the time in poll, send and recv; {rest}."


def growth(results: Results) -> Iterator[str]:
    """A line on how each thing grows."""

    def of(workload: str, setting: str, case: str, name: str, figure: str) -> float | None:
        return results.median(Where(workload, setting, case, name), figure)

    slopes = []
    for name in results.names("contender", workload="growth"):
        one = of("growth", "pin", "1", name, "p50_us")
        nine = of("growth", "pin", "9", name, "p50_us")
        if one and nine:
            slopes.append(f"{name} {(nine - one) / 8:.0f}")
    if slopes:
        yield f"**Masters**: linear; µs for each further one, 1 to 9, pinned: {', '.join(slopes)}."
    for workload, name, unit in (
        ("threads", "ours", "threads"),
        ("tasks", "ours async", "tasks"),
    ):
        cases = results.names("case", workload=workload)
        rates = [(case, of(workload, "free", case, name, "per_s")) for case in cases]
        known = [(case, rate) for case, rate in rates if rate]
        if known:
            said = ", ".join(f"{_number(int(case))}: {_number(rate)}" for case, rate in known)
            yield f"**{unit.capitalize()}**: pairs/s by {unit}: {said}."
        opened = [
            f"{other} {connections:.0f}"
            for other in results.names("contender", workload=workload, case=cases[-1])
            if (connections := of(workload, "free", cases[-1], other, "connections"))
        ] if cases else []  # fmt: skip
        if opened:
            yield (
                f"**Connections** of a process with {cases[-1]} {unit}, to all five masters "
                f"together: {', '.join(opened)}."
            )
    counts = [case for case in results.names("case", workload="held") if case.isdigit()]
    held = [(case, of("held", "free", case, "ours async", "p50_us")) for case in counts]
    beside = ", ".join(f"{_number(int(case))}: {p50:.0f}" for case, p50 in held if p50)
    if beside:
        yield f"**Held locks**: p50 of a pair in µs while so many others are held: {beside}."
    most = counts[-1] if counts else ""
    master = of("held", "free", most, "ours async", "master_bytes")
    client = of("held", "free", most, "ours async", "client_bytes")
    traced = of("held", "free", "1 000 traced", "ours async", "client_bytes_traced")
    if master and client:
        yield (
            f"**Memory** of a held lock, of {_number(int(most))}: {_number(master)} bytes on each "
            f"master (lock, fence, index), {_number(client)} resident in the client"
            + (f" ({_number(traced)} by tracemalloc)." if traced else ".")
        )


@dataclass(frozen=True)
class Column:
    """One column of a table: a figure in a case, or its ratio to another contender's."""

    heading: str
    setting: str
    case: str
    figure: str
    by: str = ""
    scale: float = 1.0

    def written(self, results: Results, workload: str, name: str) -> str:
        """The cell of a contender."""
        where = Where(workload, self.setting, self.case, name)
        if self.by:
            other = Where(workload, self.setting, self.case, self.by)
            ratios = results.ratios(where, other, self.figure)
            return _number(median(ratios)) if ratios else ""
        value = results.median(where, self.figure)
        return "" if value is None else _number(value * self.scale)


@dataclass(frozen=True)
class Table:
    """A table of one workload: a row for each contender."""

    title: str
    workload: str
    columns: Sequence[Column]

    def written(self, results: Results) -> Iterator[str]:
        """The table as Markdown, without columns of which nothing is known."""
        names = results.names("contender", workload=self.workload)
        cells = {
            column: [column.written(results, self.workload, name) for name in names]
            for column in self.columns
        }
        known = [column for column in self.columns if any(cells[column])]
        if not known:
            return
        yield f"## {self.title}\n"
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
        "Crowd: 20 processes with 8 threads each, distinct keys",
        "crowd",
        [
            Column("pairs/s", "free", "20 × 8", "per_s"),
            Column("failed", "free", "20 × 8", "failed"),
            Column("p99 ms, worst process", "free", "20 × 8", "p99_us", scale=1e-3),
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
                    Column("most by fewest", "free", case, "share"),
                    Column("longest wait ms", "free", case, "longest_wait_ms"),
                )
            ),
        ],
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
        "Views: requests/s, all in one process",
        "views",
        [
            Column("called in a loop", "free", "called", "per_s"),
            Column("× bare", "free", "called", "per_s", by="bare"),
            Column("served by gunicorn", "free", "served", "per_s"),
            Column("× bare", "free", "served", "per_s", by="bare"),
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


def who(results: Results) -> Iterator[str]:
    """Yield the description of each contender."""
    names = [name for name in CONTENDERS if any(results.find(contender=name))]
    yield "\n".join(f"- **{name}**: {CONTENDERS[name].about}" for name in names) + "\n"
    yield REDSYNC


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"
