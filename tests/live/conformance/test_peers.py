"""Two libraries of others behave as docs/how-to/conformance.md says that they do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from redlock_django.conformance.rules import Outcome
from tests.live.conformance.__main__ import PEERS, results_of

PAGE = (Path(__file__).resolve().parents[3] / "docs/how-to/conformance.md").read_text()


@pytest.mark.nightly
@pytest.mark.live
@pytest.mark.parametrize("peer", PEERS)
def test_the_page_shows_what_the_runner_says(peer: str) -> None:
    column = [*PEERS].index(peer)
    shown = {
        name: cells.split(" | ")[column]
        for name, cells in re.findall(r"^\| `([\w-]+)` \| (.*) \|$", PAGE, re.MULTILINE)
    }
    found = {one.rule.name: one.outcome.value for one in results_of(peer)}
    assert Outcome.FAIL.value in found.values()
    assert {name: found[name] for name in shown} == shown
