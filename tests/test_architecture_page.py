"""docs/contributing/architecture.md answers its questions in one hop, and what it names exists.

It shows which files exclusion rests on: every package and script that votes is among them.
"""

from __future__ import annotations

import re

from tests.pages import ROOT
from tests.test_architecture import LAYERS

PAGE = (ROOT / "docs/contributing/architecture.md").read_text()
PACKAGE = ROOT / "redlock_django"
RESTS, ELSEWHERE = PAGE.partition("## What exclusion rests on")[2].split("\nA defect elsewhere")
FILES = dict.fromkeys(re.findall(r"`((?:engine|wire|locking|backends)/[\w/]+\.(?:py|lua))`", RESTS))


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
