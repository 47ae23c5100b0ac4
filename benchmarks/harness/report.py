"""From results to benchmarks.json, benchmarks.md and benchmarks.svg."""

from __future__ import annotations

import re
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
A lock over five masters should cost one round trip, also under load and with masters down.
`uv run python -m benchmarks` measures this, beside other libraries and bare sockets, and writes
this page ([how it measures](../benchmarks/README.md)). A ratio is taken within a round; the median
over the rounds is shown. Every job checks that its locks exclude each other.
"""

ELSEWHERE = """\
## Other stores

`python -m benchmarks stores` measures [pairs, refusals and hand-offs of each store, beside
django-pglock and kazoo](choose-a-store.md#what-each-costs), and `python -m benchmarks database`
[a pair beside `transaction_lock`](contributing/database-locks.md#what-it-costs). A test counts
[the statements of a waiter](contributing/database-locks.md#order-of-arrival).
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
        ELSEWHERE,
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
    said = []
    for name, value in results.about.items():
        if name == "date" or name.startswith("load") or name.endswith("at the end"):
            continue  # the date and the load are at the top of the page
        if name == "peers":
            value = ", ".join(f"{peer} {version}" for peer, version in value.items())
        if name == "left out":
            value = "; ".join(f"{peer} ({why})" for peer, why in value.items())
        if value:
            said.append(f"{name}: {value}")
    looks = sum(row.figures.get("looks", 0) for row in results.rows)
    overlaps = sum(row.figures.get("overlaps", 0) for row in results.rows)
    said.append(f"checks of mutual exclusion: {written(looks)}, overlaps: {overlaps}")
    troubles = [f"- **trouble**: {trouble}" for trouble in results.troubles]
    return "\n".join(["; ".join(said) + ".\n", *troubles, *([""] if troubles else [])])


def who(results: Results) -> Iterator[str]:
    """Yield the description of each contender."""
    names = [name for name in CONTENDERS if any(results.find(contender=name))]
    yield "; ".join(f"**{name}**: {CONTENDERS[name].about}" for name in names) + ".\n"


def table(targets: Iterable[Target], results: Results) -> str:
    """Return the table of targets; those that were not to be measured are left out."""
    asked = [one for one in targets if one.values(results) or one.has_failed(results)]
    rows = [target.row(results) for target in asked]
    missed = sum(target.missed(results) for target in asked)
    failed = sum(not target.values(results) for target in asked)
    work = ""
    for row in rows:  # what the row above says is not repeated
        work, row[0] = row[0], row[0] if row[0] != work else ""
    heads = ["Work", "Figure", "Target", "Measured (rounds)"]
    met = len(rows) - missed - failed
    return f"{markdown(heads, rows)}\n\n{met} of {len(rows)} met; a figure in bold is not.\n"


def not_met(targets: Iterable[Target], results: Results) -> Iterator[str]:
    """Yield the section about missed targets: why, where the time goes, and what would help."""
    groups: dict[Reason | None, dict[str, list[str]]] = {}
    for target in targets:
        if target.missed(results):
            figures = groups.setdefault(target.reason, {}).setdefault(target.work, [])
            figures.append(target.what)
    if groups:
        yield "## Not met\n"
    for reason, missing in groups.items():
        text = reason.text(results) if reason else "Why was not examined."
        name = reason.name if reason else ""
        if found := list(results.find(workload="profiles", case=name)):
            text += f" {_in_kernel(found[-1].figures['profile']):.0%} of the time is in the kernel."
        named = "; ".join(f"{work} ({', '.join(what)})" for work, what in missing.items())
        yield f"- **{named}**: {text}"
    if groups:
        yield ""


# Where the kernel is entered. cProfile does not see the send that `Link.send` unpacks from a map.
_KERNEL = re.compile(r"poll of|of _socket.socket|wire/drivers/sockets.py:send$")


def _in_kernel(lines: list[tuple[float, str]]) -> float:
    """Return the share of a profile that is in the kernel."""
    return sum(share for share, name in lines if _KERNEL.search(name))
