"""docs/reference/commands.md lists every command with its exit statuses."""

from __future__ import annotations

import re

import pytest
from django.core.management import get_commands, load_command_class

from redlock_django.management.child_process import NOT_EXECUTABLE, NOT_FOUND
from redlock_django.management.single_run import LOCK_HELD, LOCK_LOST, NO_QUORUM
from tests.test_documents import ROOT

PAGE = (ROOT / "docs/reference/commands.md").read_text()
ROWS = {
    name: {
        status for status, cell in zip("013", cells.split("|")[1:4], strict=True) if cell.strip()
    }
    for name, cells in re.findall(r"^\| `(\w+)` \|(.*)\|$", PAGE, re.MULTILINE)
}


def test_every_command_is_listed() -> None:
    ours = {name for name, app in get_commands().items() if app == "redlock_django"}
    assert ours == ROWS.keys()


@pytest.mark.parametrize("name", sorted(ROWS.keys() - {"lead", "with_lock"}))
def test_the_statuses_of_a_command_are_those_of_its_docstring(name: str) -> None:
    summary = (type(load_command_class("redlock_django", name)).__doc__ or "").splitlines()[0]
    everywhere = {"2", "130"}
    assert set(re.findall(r"\b\d+\b", summary)) - everywhere == ROWS[name]


def test_the_statuses_of_with_lock_are_named() -> None:
    for status in (LOCK_HELD, LOCK_LOST, NOT_EXECUTABLE, NOT_FOUND):
        assert f" {status} " in PAGE
    assert ROWS["with_lock"] == {"0", "1", str(NO_QUORUM)}
    assert ROWS["lead"] == {"0", "1"}
