"""Run the tests of every row of docs/reference/faults.md without the rule that guards against it.

`uv run python -m tests.live.unguarded [ROW ...]` removes each rule that a row names and runs the
row's tests until one fails. If all pass, the tests do not show that the rule is needed: the program
reports the row and exits with status 1. Rows that say "own" are skipped: their tests run with and
without the rule themselves.
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

RULE = "REDLOCK_WITHOUT"  # environment variable that names the rule for a run of pytest
SECONDS = 100  # for the tests of one row; a test that hangs without its rule counts as a failure


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Run the test without the rule, but its fixtures with it (this module is a pytest plugin)."""
    with without_rule(os.environ[RULE]):
        return (yield)


def first_failure(tests: list[str], rule: str) -> str:
    """Return the first of these tests that fails without the rule, or "" if all pass.

    If the tests do not end within SECONDS, or all are skipped, return a phrase that says so. Raises
    RuntimeError if pytest could not run them.
    """
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
        return f"does not end within {SECONDS} s"
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stdout)
    if not re.search(r"\d+ (passed|failed|error)", done.stdout):
        return "skipped on this machine"
    return "".join(re.findall(r"^(?:FAILED|ERROR) (tests/\S+)", done.stdout, re.MULTILINE)[:1])


def main(rows: list[str]) -> int:
    """Run the command line: all rows, or those whose numbers are given. Return the exit status."""
    undetected = 0
    for row in ROWS:
        if rows and row[0] not in rows:
            continue
        tests = ["::".join(found) for found in TEST.findall(row[3])]
        for rule in NAMES.findall(row[4]):
            failure = first_failure(tests, rule)
            undetected += not failure
            sys.stdout.write(f"{row[0]:>2} {rule:50} {failure or 'NO TEST FAILS'}\n")
            sys.stdout.flush()
    return 1 if undetected else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
