"""docs/contributing/architecture.md answers its questions in one hop, and what it names exists.

It shows which files exclusion rests on: every package and script that votes is among them.
"""

from __future__ import annotations

import re

import pytest

from tests.pages import ROOT
from tests.test_architecture import LAYERS
from tests.test_documents import BASES, symbols_of

PAGE = (ROOT / "docs/contributing/architecture.md").read_text()
QUESTIONS = dict(re.findall(r"^\| ([^|]+\?) \| (.+) \|$", PAGE, re.MULTILINE))
PACKAGE = ROOT / "redlock_django"
RESTS, ELSEWHERE = PAGE.partition("## What exclusion rests on")[2].split("\nA defect elsewhere")
FILES = dict.fromkeys(re.findall(r"`((?:engine|wire|locking|backends)/[\w/]+\.(?:py|lua))`", RESTS))
NAMES = sorted(set(re.findall(r"`([\w.-]+/[\w./-]*|\w+\.py)(?:::([\w.]+))?`", PAGE)))


@pytest.mark.parametrize(
    "question",
    [
        "Where is COMMIT, and the guard before it?",
        "Where is a refusal decided?",
        "Which master is trusted, and why not?",
        "How are errors answered, and where is 423 chosen?",
        "When are two requests the same?",
        "Where is a late reply dropped?",
        "How is the loss of a lock noticed?",
        "Who wakes a waiter?",
        "Where do admin rows come from?",
        "How do I add a store?",
        "How do I add an error?",
    ],
)
def test_a_question_is_answered_by_a_path(question: str) -> None:
    assert re.search(r"`[\w./]+\.py(::[\w.]+)?`", QUESTIONS[question])


@pytest.mark.parametrize(
    "symbol",
    [
        "engine/quorum.py::Tally.cast",
        "engine/fencing.py::highest",
        "wire/drivers/sockets.py::LinkSocket.send",
        "locking/renewal.py::RenewalService",
        "web/locked_view.py::Call.run",
    ],
)
def test_the_walks_pass_where_a_lock_is_decided_sent_and_renewed(symbol: str) -> None:
    walks = PAGE[PAGE.index("## The life of one") : PAGE.index("### Why a master is not asked")]
    assert f"`{symbol}`" in walks


def test_files_and_symbols_of_the_page_exist() -> None:
    for path, symbol in NAMES:
        found = [ROOT / base / path for base in BASES if (ROOT / base / path).exists()]
        assert found, path
        assert not symbol or any(symbol in symbols_of(file) for file in found), (path, symbol)


def test_every_layer_is_in_the_diagram() -> None:
    diagram = PAGE[PAGE.index("```mermaid") :]
    packages = {entry.split(".")[0] for entries in LAYERS for entry in entries}
    named = {name for name in packages if (ROOT / "redlock_django" / name / "__init__.py").exists()}
    assert not {name for name in named - {"migrations"} if name not in diagram}


def lines(*names: str) -> int:
    return sum(len((PACKAGE / name).read_text().splitlines()) for name in names)


def test_exclusion_rests_on_a_package_or_cannot_be_broken_by_it() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    harmless = set(re.findall(r"`(\w+)`", ELSEWHERE))
    assert packages - harmless == {name.partition("/")[0] for name in FILES}
    assert not {name.partition("/")[0] for name in FILES} & harmless


def test_exclusion_rests_on_every_script_that_votes() -> None:
    scripts = {path.name for path in (PACKAGE / "engine/protocol/lua").glob("*.lua")}
    asked = {"health.lua", "held.lua", "look.lua"}  # inspection
    assert {name.rpartition("/")[2] for name in FILES if name.endswith(".lua")} == scripts - asked


def test_the_page_says_on_how_much_exclusion_rests() -> None:
    said = re.search(r"about ([\d,]+) of ([\d,]+)\s+lines for Redis masters", RESTS)
    assert said
    core = lines(*(name for name in FILES if not name.startswith("backends/")))
    every = lines(*(str(path) for path in PACKAGE.rglob("*") if path.suffix in {".py", ".lua"}))
    for shown, counted in zip(said.groups(), (core, every), strict=True):
        assert abs(int(shown.replace(",", "")) - counted) < 0.1 * counted, (shown, counted)
