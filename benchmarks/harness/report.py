"""From results to benchmarks.json, benchmarks.md and benchmarks.svg."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean

from benchmarks.harness.contenders import CONTENDERS
from benchmarks.harness.picture import picture
from benchmarks.harness.results import Results, written
from benchmarks.harness.workload import Reason, Target, Workload, markdown

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

REDSYNC = """\
redsync (Go) is not run here. On a similar machine its fail-fast variant took 0.67 to 0.77 ×
(pinned) and 1.04 × (rtt) the time of the plain SET floor, and
reached 8 000 pairs/s with 32 threads.
"""


MOST_OTHERS = 0.05
"""The share of the processors that other programs may use of a quiet machine."""


def write(results: Results, workloads: Iterable[Workload], folder: Path) -> None:
    """Write the three files into a folder, and the targets to the terminal."""
    folder.mkdir(parents=True, exist_ok=True)
    workloads = list(workloads)
    results.save(folder / "benchmarks.json")
    charts = [chart.drawn(results, each.name) for each in workloads for chart in each.charts]
    (folder / "benchmarks.svg").write_text(picture(charts))
    (folder / "benchmarks.md").write_text(page(results, workloads))
    print(table([target for each in workloads for target in each.targets], results))
    print(f"written to {folder}/benchmarks.md, .json and .svg")


def page(results: Results, workloads: Iterable[Workload]) -> str:
    """Return the whole page."""
    workloads = list(workloads)
    targets = [target for each in workloads for target in each.targets]
    growth = [f"- {line}" for each in workloads for line in each.growth(results)]
    tables = [(each.name, one) for each in workloads for one in each.tables]
    parts = [
        TITLE,
        measured(results),
        INTRODUCTION,
        "![Figures of the last run](benchmarks.svg)\n",
        "## The machine\n",
        machine(results),
        "## Targets\n",
        table(targets, results),
        "\n".join(not_met(targets, results)),
        "## How it grows\n",
        "\n".join(growth) + "\n",
        *(text for name, one in tables for text in one.page(results, name)),
        "## Contenders\n",
        *who(results),
    ]
    return "\n".join(part for part in parts if part)


def measured(results: Results) -> str:
    """Return when this was measured, and whether the machine had other work."""
    about = results.about
    before, after = (str(about.get(f"load at the {end}", "")) for end in ("start", "end"))
    cores = int(about.get("cores", 1))
    shares = [row.figures["others"] for row in results.rows if "others" in row.figures]
    others = mean(shares) / cores if shares else 1.0
    load = (
        f"load {before.partition(' ')[0]} before and {after.partition(' ')[0]} at the end on "
        f"{cores} cores, of which other programs used {others:.1%} meanwhile"
    )
    date = f"Measured on {about.get('date', 'an unknown date')}"
    if others <= MOST_OTHERS:
        return f"{date}, on a quiet machine ({load}).\n"
    return (
        f"{date}. **The machine was busy with other work** ({load}): latencies are too long, "
        "ratios scatter widely (see the rounds in brackets), and it is not certain which targets "
        "are met.\n"
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
    lines.append(f"- checks of mutual exclusion: {written(looks)}, overlaps: {overlaps}")
    lines += [f"- **trouble**: {trouble}" for trouble in results.troubles]
    return "\n".join(lines) + "\n"


def who(results: Results) -> Iterator[str]:
    """Yield the description of each contender."""
    names = [name for name in CONTENDERS if any(results.find(contender=name))]
    yield "\n".join(f"- **{name}**: {CONTENDERS[name].about}" for name in names) + "\n"
    yield REDSYNC


def table(targets: Iterable[Target], results: Results) -> str:
    """Return the table of targets; those that were not to be measured are left out."""
    asked = [one for one in targets if one.values(results) or one.has_failed(results)]
    rows = [target.row(results) for target in asked]
    met = sum(row[-1] == "yes" for row in rows)
    heads = ["Work", "Figure", "Target", "Measured (rounds)", "Met"]
    return f"{markdown(heads, rows)}\n\n{met} of {len(rows)} met.\n"


def not_met(targets: Iterable[Target], results: Results) -> Iterator[str]:
    """Yield the section about missed targets: values, profiles, and what would help."""
    groups: dict[Reason | None, list[Target]] = {}
    for target in targets:
        if target.missed(results):
            groups.setdefault(target.reason, []).append(target)
    if groups:
        yield "## Not met\n"
    for reason, missing in groups.items():
        for target in missing:
            yield f"- {target.work}, {target.what}: {written(target.measured(results) or 0)}"
        name = reason.name if reason else ""
        if found := list(results.find(workload="profiles", case=name)):
            yield f"\n  cProfile of {name}: {_profile(found[-1].figures['profile'])}"
        yield f"\n  {reason.text(results) if reason else 'Why was not examined.'}\n"


# Where the kernel is entered. cProfile does not see the send that `Link.send` unpacks from a map.
_KERNEL = re.compile(r"poll of|of _socket.socket|wire/link/link.py:send$")


def _profile(lines: list[tuple[float, str]]) -> str:
    """Return the share of the kernel, then of our files, then of the rest of Python."""
    kernel = sum(share for share, name in lines if _KERNEL.search(name))
    files: defaultdict[str, float] = defaultdict(float)
    for share, name in lines:
        if not _KERNEL.search(name):
            files[name.partition(":")[0] if ":" in name else "functions in C"] += share
    ranked = sorted(files.items(), key=lambda item: -item[1])[:9]
    rest = ", ".join(f"`{name}` {share:.0%}" for name, share in ranked)
    return f"{kernel:.0%} of the time in poll, send and recv; {rest}."
