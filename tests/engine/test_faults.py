"""The table of the faults of servers: what is wrong, and what to do."""

from __future__ import annotations

import re
from pathlib import Path
from string import Formatter

import pytest

from redlock_django.engine.inspection.faults import FAULTS, fault

PACKAGE = Path(__file__).parents[2] / "redlock_django"


@pytest.mark.parametrize("code", FAULTS)
def test_every_fault_says_what_to_do(code: str) -> None:
    kind = FAULTS[code]
    fields = [f for text in kind[:2] for _, f, _, _ in Formatter().parse(text) if f]
    one = fault(code, **dict.fromkeys(fields, 7))
    assert str(one) == f"{one.text}: {one.remedy}"
    assert one.text.strip()
    assert one.remedy.strip()
    assert not one.remedy.endswith(".")


def test_every_fault_of_the_code_is_in_the_table_and_the_other_way_round() -> None:
    code = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    named = set(re.findall(r'\bfault\(\s*"(\w+)"', code))
    computed = {"unreachable", "untrusted", "acl", "errors", "waiting"}  # fault(code, …)
    assert named | computed == FAULTS.keys()
