"""Check the models with Spin, or print the story of what happens without a rule.

`uv run python -m tests.formal --all` runs every search; `--without drift` one of those that fail.
"""

from __future__ import annotations

import argparse
import sys

from tests.formal.runs import FAILS, HOLDS
from tests.formal.spin import Run, missing, search

TIMEOUT = 1800.0  # s


def check(run: Run, *, story: bool) -> bool:
    """Run a search and print its result; return whether that is as it must be."""
    result = search(run, timeout=TIMEOUT)
    what = f"without {run.without}: " if run.without else f"{run.name}: "
    found = "an assertion fails" if result.story else "every assertion holds"
    sys.stdout.write(
        f"{what}{result.states:,} states in {result.seconds} s and {result.memory:.0f} MB, "
        f"{found} ({run.macros})\n"
    )
    if result.story and (story or not run.without):
        sys.stdout.write(f"{result.story}\n")
    sys.stdout.flush()
    return bool(result.story) is bool(run.without)


def main() -> int:
    """Run the searches that the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m tests.formal", description=__doc__)
    parser.add_argument("--all", action="store_true", help="not only the short ones")
    parser.add_argument("--without", choices=[run.name for run in FAILS], help="print a story")
    chosen = parser.parse_args()
    if reason := missing():
        parser.error(f"{reason} (apt-get install spin gcc libc6-dev)")
    runs = [run for run in (*HOLDS, *FAILS) if chosen.all or run.daily]
    if chosen.without:
        runs = [run for run in FAILS if run.name == chosen.without]
    passed = [check(run, story=bool(chosen.without)) for run in runs]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
