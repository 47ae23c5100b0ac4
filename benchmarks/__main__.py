"""`python -m benchmarks`: what a lock adds to a request, beside what a site would use instead."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from benchmarks import machine, table
from benchmarks.servers.stores import STORES

HERE = Path(__file__).parent
STUDIES = sorted(path.stem for path in (HERE / "studies").glob("[a-z]*.py"))
PAGE = HERE.parent / "docs/benchmarks.md"
RESULTS = HERE / "RESULTS.md"
BETWEEN = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- end -->)", re.DOTALL)
"""The part of the page that `--page` replaces."""


def main() -> int:
    """Measure, and print or write what was found; return the exit status."""
    given = arguments().parse_args()
    if given.study:
        sys.argv[1:] = given.arguments
        import_module(f"benchmarks.studies.{given.study}").main()
        return 0
    if given.all:
        return targets(given)
    began, others = time.monotonic(), machine.Others()
    found = table.measure(given.stores, given.rounds or 3, given.seconds or 0.3, say)
    about = machine.sentence(others.share(), time.monotonic() - began)
    print(f"\n{found}\n\n{about}")
    if given.page:
        PAGE.write_text(BETWEEN.sub(lambda _: f"\n{found}\n\n{about}\n\n", PAGE.read_text()))
    return 0


def targets(given: argparse.Namespace) -> int:
    """Print all figures, judge the targets, and write RESULTS.md if all were measured."""
    from benchmarks.targets import every

    results = every.measure(given.only, given.rounds or 5, given.seconds or 1.0, say)
    page = every.page(results)
    print(f"{page}\n{every.figures(results)}")
    if given.only == every.NAMES and given.write:
        RESULTS.write_text(page)
    missed = any(target.missed(results) for target in every.targets())
    return 1 if results.troubles or (given.strict and missed) else 0


def say(line: str) -> None:
    """Show how far the measurement is."""
    print(line, file=sys.stderr, flush=True)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    from benchmarks.targets import every

    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description="Measure what a lock adds to a request, beside what a site would use instead.",
        epilog="See benchmarks/README.md.",
    )
    add = parser.add_argument
    add(
        "--stores",
        type=some_of([*STORES]),
        default=table.ASKED,
        metavar="A,B",
        help=f"of {', '.join(STORES)}; or all (default: {','.join(table.ASKED)})",
    )
    add("--page", action="store_true", help="write the table to docs/benchmarks.md, too")
    add("--all", action="store_true", help="judge the targets of the project: 15 minutes")
    add(
        "--only",
        type=some_of(every.NAMES),
        default=every.NAMES,
        metavar="A,B",
        help=f"with --all: of {', '.join(every.NAMES)}",
    )
    add("--write", action="store_true", help="with --all: write benchmarks/RESULTS.md")
    add("--strict", action="store_true", help="with --all: exit with 1 if a target is missed")
    add("--rounds", type=int, help="default: 3; with --all 5")
    add("--seconds", type=float, help="of a measurement; default: 0.3; with --all 1")
    add("study", nargs="?", choices=STUDIES, help="a study for maintainers instead")
    add("arguments", nargs=argparse.REMAINDER, help="of the study")
    return parser  # fmt: skip


def some_of(known: list[str]) -> Callable[[str], list[str]]:
    """Return what reads a list of names with commas, of which all are known."""

    def read(text: str) -> list[str]:
        asked = known if text == "all" else [part.strip() for part in text.split(",")]
        if unknown := {*asked} - {*known}:
            raise argparse.ArgumentTypeError(
                f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}"
            )
        return asked

    return read


def interrupt(number: int, frame: object) -> None:
    """End the measurement, so that what it has is written, also for `timeout 20m uv run ...`."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, interrupt)
    sys.exit(main())
