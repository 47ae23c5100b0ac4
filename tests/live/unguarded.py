"""Every fault of docs/reference/faults.md again, with the rule that guards against it taken out.

`uv run python -m tests.live.unguarded [ROW ...]` runs, for each rule that a row names, its tests
without that rule, until one fails: a row whose tests all pass does not show what it says. What is
"own" there needs no such run: those tests go both ways by themselves.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.live.removed_rules import without_rule
from tests.test_faults_list import NAMES, ROWS, TEST

RULE = "REDLOCK_WITHOUT"  # by which a run of pytest is told what to take out
SECONDS = 100  # for the tests of one row; what hangs without its rule is found out, too


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """As a plugin of pytest: a test runs without the rule, its fixtures with it."""
    with without_rule(os.environ[RULE]):
        return (yield)


def told(tests: list[str], rule: str) -> str:
    """The first of these tests that fails without a rule; "" where all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "tests.live.unguarded"]
    try:
        done = subprocess.run(
            [*command, *tests],
            env={**os.environ, RULE: rule},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "does not come to an end"
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stdout)
    if not re.search(r"\d+ (passed|failed|error)", done.stdout):
        return "skipped here"
    return "".join(re.findall(r"^(?:FAILED|ERROR) (tests/\S+)", done.stdout, re.MULTILINE)[:1])


def main(rows: list[str]) -> int:
    """The command line."""
    silent = 0
    for row in ROWS:
        if rows and row[0] not in rows:
            continue
        tests = ["::".join(found) for found in TEST.findall(row[3])]
        for name in NAMES.findall(row[4]):
            found = told(tests, name)
            silent += not found
            sys.stdout.write(f"{row[0]:>2} {name:40} {found or 'NOBODY TELLS'}\n")
            sys.stdout.flush()
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
