"""docs/contributing/audit.md names every package, and says how much there is to read."""

from __future__ import annotations

import re

from tests.pages import ROOT

PAGE = (ROOT / "docs/contributing/audit.md").read_text()
PACKAGE = ROOT / "redlock_django"
FILES = dict.fromkeys(re.findall(r"`((?:engine|wire|locking|backends)/[\w/]+\.(?:py|lua))`", PAGE))


def lines(*names: str) -> int:
    return sum(len((PACKAGE / name).read_text().splitlines()) for name in names)


def test_every_package_is_to_be_read_or_cannot_break_exclusion() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    last = PAGE[PAGE.index("## What cannot break exclusion") : PAGE.index("## The raw history")]
    harmless = set(re.findall(r"`(\w+)`", last))
    assert packages - harmless == {name.partition("/")[0] for name in FILES}
    assert not {name.partition("/")[0] for name in FILES} & harmless


def test_every_script_that_votes_is_to_be_read() -> None:
    scripts = {path.name for path in (PACKAGE / "engine/protocol/lua").glob("*.lua")}
    asked = {"health.lua", "held.lua", "look.lua"}  # inspection
    harmless = {"queue.lua", "index.lua"}
    assert {name.rpartition("/")[2] for name in FILES if name.endswith(".lua")} == (
        (scripts - asked) | harmless
    )


def test_the_page_says_how_much_there_is_to_read() -> None:
    said = re.search(r"about ([\d,]+) of ([\d,]+)\s+lines for Redis masters", PAGE)
    assert said
    core = lines(*(name for name in FILES if not name.startswith("backends/")))
    every = lines(*(str(path) for path in PACKAGE.rglob("*") if path.suffix in {".py", ".lua"}))
    for shown, counted in zip(said.groups(), (core, every), strict=True):
        assert abs(int(shown.replace(",", "")) - counted) < 0.1 * counted, (shown, counted)
