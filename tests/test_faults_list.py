"""Every test and mutant that docs/reference/faults.md names exists, each test once."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.live import removed_rules

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs/reference/faults.md").read_text()
ROWS = re.findall(r"^\| (\d+) \|(.*)\|(.*)\|(.*)\|(.*)\|$", TEXT, re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NAMES = re.compile(r'"([^"]+)"')
NAMED = [found for row in ROWS for found in TEST.findall("".join(row[3:]))]

Test = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def _tests(file: str) -> dict[str, Test]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name: node for node in ast.walk(tree) if isinstance(node, Test)}


def test_every_fault_is_listed() -> None:
    assert [row[0] for row in ROWS] == [str(number) for number in range(1, 59)]


def test_each_fault_names_a_test_or_is_not_covered() -> None:
    assert not [row[0] for row in ROWS if not (TEST.search(row[3]) or "not covered" in row[3])]


def test_every_named_test_exists() -> None:
    assert not [
        f"{file}::{name}"
        for file, name in NAMED
        if not name.startswith("test_") or name not in _tests(file)
    ]


def test_no_test_is_named_for_two_faults() -> None:
    assert sorted(NAMED) == sorted(set(NAMED))


def test_every_rule_can_be_removed() -> None:
    """The code that a rule is made of is found; otherwise an error names the code."""
    for name in removed_rules.RULES:
        with removed_rules.without_rule(name):
            pass


def test_without_the_rule_something_is_known_to_fail() -> None:
    """A second run of the test itself, a mutant, or another test shows it."""
    for number, *_, where, how in ROWS:
        proofs = TEST.sub("", how).strip()
        assert set(NAMES.findall(proofs)) <= removed_rules.RULES.keys(), number
        said = NAMES.sub("", proofs).strip()
        assert said in ("", "own") or said.startswith("own ("), number
        tests = [_tests(file)[name] for file, name in TEST.findall(where)]
        ways = [ast.unparse(way) for test in tests for way in test.decorator_list]
        assert not said or any(
            way in ("guards", "guards_both") or "parametrize(" in way for way in ways
        ), number
