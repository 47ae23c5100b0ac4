"""The models hold, fail without each rule and name code that exists; a page names the rules."""

from __future__ import annotations

import re

import pytest

from redlock_django.engine.protocol.statuses import Status
from tests.formal.runs import FAILS, HOLDS
from tests.formal.spin import MODELS, Run, missing, search
from tests.pages import ROOT, Page
from tests.test_documents import symbols_of

PACKAGE = ROOT / "redlock_django"
PAGE = (ROOT / "docs/contributing/formal.md").read_text()
TEXTS = {path.name: path.read_text() for path in MODELS.glob("*.pml")}
needs_spin = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


def _params(runs: tuple[Run, ...]) -> list[object]:
    nightly = pytest.mark.nightly
    return [pytest.param(r, id=r.name, marks=() if r.daily else nightly) for r in runs]


@pytest.mark.slow
@needs_spin
@pytest.mark.parametrize("run", _params(HOLDS))
def test_every_assertion_holds_in_every_state(run: Run) -> None:
    result = search(run, timeout=1800)
    assert not result.story
    assert result.states == run.states


@pytest.mark.slow
@needs_spin
@pytest.mark.parametrize("run", _params(FAILS))
def test_without_a_rule_an_assertion_fails(run: Run) -> None:
    story = search(run, timeout=1800).story
    assert story
    assert story.splitlines()[-1] == run.finds


def test_the_page_names_each_rule_and_the_largest_search() -> None:
    table = Page("docs/contributing/formal.md").section("What fails without a rule").first_cells()
    assert {run.without for run in FAILS if run.without not in table} == set()
    states = sorted(run.states for run in HOLDS)
    assert f"from {states[0]:,} to {states[-1]:,} states" in PAGE


@pytest.mark.parametrize("name", TEXTS)
def test_a_model_names_code_that_exists(name: str) -> None:
    named = re.findall(r"([\w/]+\.py)::(\w+(?:\.\w+)*)", TEXTS[name])
    assert [
        (path, symbol) for path, symbol in named if symbol not in symbols_of(PACKAGE / path)
    ] == []
    files = re.findall(r"engine/[\w/]+\.(?:py|lua)", TEXTS[name])
    assert files
    assert [path for path in files if not (PACKAGE / path).is_file()] == []


@pytest.mark.parametrize("name", ["lock.pml", "permits.pml"])
def test_each_script_of_a_model_is_named_for_one_of_the_package(name: str) -> None:
    model = TEXTS[name]
    for script in re.findall(r"inline run_(\w+)", model):
        named = rf"inline run_{script}\(\) {{ +/\* engine/protocol/lua/{script}\.lua"
        assert re.search(named, model)
    statuses = re.search(r"mtype = {([^}]*)}; /\* engine/protocol/statuses", model)
    assert statuses
    assert {s.strip() for s in statuses[1].split(",")} - {"DONE"} <= set(Status.__members__)


def test_every_macro_of_a_run_is_known_to_its_model() -> None:
    for run in (*HOLDS, *FAILS):
        for macro in run.macros.split():
            name = macro.partition("=")[0]
            model = TEXTS[run.model] + TEXTS["network.pml"]
            assert re.search(rf"#ifn?def {name}\b", model), (run.name, macro)
