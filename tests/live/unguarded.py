"""Run the tests of faults without the rules that guard against them.

`uv run python -m tests.live.unguarded [RULE ...]` removes each rule that a mark names, as in
`@pytest.mark.fault(without=("a resend is a new grant",))`, and runs its tests until one fails. If
all pass, the tests do not show that the rule is needed: the program reports the rule and exits with
status 1.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.removed_rules import without_rule

RULE = "REDLOCK_WITHOUT"  # environment variable that names the rule for a run of pytest
TESTS = Path(__file__).resolve().parents[1]
_Test = ast.FunctionDef | ast.AsyncFunctionDef
SECONDS = 100  # for the tests of one rule; a test that hangs without its rule counts as a failure


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


def marked() -> dict[str, list[str]]:
    """Return the tests that are marked with each rule."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if "mark.fault(" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, _Test):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                    for rule in ast.literal_eval(mark.keywords[0].value):
                        test = f"{path.relative_to(TESTS.parent)}::{node.name}"
                        found.setdefault(rule, []).append(test)
    return found


def main(rules: list[str]) -> int:
    """Run the command line: all rules, or those that are given. Return the exit status."""
    undetected = 0
    for rule, tests in marked().items():
        if rules and rule not in rules:
            continue
        failure = first_failure(tests, rule)
        undetected += not failure
        sys.stdout.write(f"{rule:50} {failure or 'NO TEST FAILS'}\n")
        sys.stdout.flush()
    return 1 if undetected else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
