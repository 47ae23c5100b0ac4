"""From results to benchmarks.json, benchmarks.md and benchmarks.svg."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import mean

from benchmarks.contenders import CONTENDERS
from benchmarks.growth import growth
from benchmarks.picture import draw
from benchmarks.results import Results, written
from benchmarks.tables import TABLES
from benchmarks.target_table import missed, targets

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


MOST_OTHERS = 0.05
"""The share of the processors that other programs may use of a quiet machine."""


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
        *(text for table in TABLES for text in table.page(results)),
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
