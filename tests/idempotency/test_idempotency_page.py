"""The statements of docs/reference/idempotency.md."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission

from redlock_django import idempotent
from redlock_django.exceptions import IdempotencyRefused
from redlock_django.idempotency.refusals import REFUSALS
from redlock_django.web.answers import problem_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/idempotency.md").read_text()


def section(heading: str) -> str:
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


def test_every_argument_is_in_the_table() -> None:
    first_cells = " ".join(re.findall(r"^\|([^|]+)\|", section("Arguments"), re.MULTILINE))
    named = set(re.findall(r"`(\w+)`", first_cells))
    assert named == set(inspect.signature(idempotent).parameters) - {"view"}


def test_every_refusal_is_in_the_table_as_it_is_answered() -> None:
    rows = re.findall(r"^\|[^|]+\| (\d+) \| `(\S+)` \| (\w+) \| (\w+) \|$", PAGE, re.MULTILINE)
    documented = {
        (int(status), code, retryable == "yes", new_key == "yes")
        for status, code, retryable, new_key in rows
    }
    problems = [problem_of(IdempotencyRefused(refusal)) for refusal in REFUSALS]
    names = ("status", "code", "retryable", "safe_new_key")
    assert documented == {tuple(problem[name] for name in names) for problem in problems}


@pytest.mark.django_db
def test_the_permission_of_the_page_exists() -> None:
    assert "`resolve_idempotencyrecord`" in section("Operating")
    assert Permission.objects.filter(codename="resolve_idempotencyrecord").exists()


@pytest.mark.parametrize("command", re.findall(r"manage\.py (\w+)", section("Operating")))
def test_the_commands_of_the_page_exist(command: str) -> None:
    from django.core.management import get_commands

    assert get_commands()[command] == "redlock_django"


def test_each_cell_of_the_table_of_guarantees_names_a_test() -> None:
    guarantees = section("What is guaranteed when")
    rows = re.findall(r"^\| (?:sync|async).*$", guarantees, re.MULTILINE)
    labels = [
        re.fullmatch(r" \[.+\]\[(\w+)\] ", cell) for row in rows for cell in row.split("|")[2:-1]
    ]
    assert len(labels) == 3 * 6
    tests = re.findall(r'^\[(\w+)\]: \.\./\.\./(\S+) "(\w+)"$', guarantees, re.MULTILINE)
    assert {label[1] for label in labels if label} == {label for label, _, _ in tests}
    assert all(labels)
    for _, file, test in tests:
        assert f"def {test}(" in (ROOT / file).read_text(), (file, test)
