"""The way of a lock through the package, as the page on architecture shows it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.pages import ROOT

PAGE = (ROOT / "docs/contributing/architecture.md").read_text()


@pytest.fixture(scope="module")
def printed() -> str:
    """Return what `python -m tests.walk` prints."""
    walk = [sys.executable, "-m", "tests.walk"]
    return subprocess.run(walk, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def files(printed: str) -> dict[str, set[str]]:
    """Return the files of each trip by its name."""
    found = {}
    for part in printed.split("\n\n")[1:]:
        name, *lines = part.strip().splitlines()
        found[name.removesuffix(":")] = {
            path for line in lines for path in paths(*line.strip().rpartition("/")[::2])
        }
    return found


def paths(folder: str, names: str) -> set[str]:
    """Return `wire/links/link.py` and others for `wire/links` and `link.py, master.py`."""
    return {f"{folder}/{name}".removeprefix("/") for name in names.split(", ")}


@pytest.mark.parametrize(
    "trip",
    [
        "`with lock()`: acquire and release",
        "GET with `@lock_resource`, under ATOMIC_REQUESTS and LockMiddleware",
        "POST with `@lock_resource` and `@idempotent`",
    ],
)
def test_a_trip_enters_the_engine(files: dict[str, set[str]], trip: str) -> None:
    assert "engine/rounds.py" in files[trip]


def test_a_replay_asks_no_master(files: dict[str, set[str]]) -> None:
    assert not {file for file in files["its replay"] if file.startswith(("wire/", "backends/"))}


def test_the_page_shows_the_way_of_a_pair(files: dict[str, set[str]]) -> None:
    rows = re.findall(r"^\| .+ \| `([\w/]+)/` \| ([\w, ]+) \|$", PAGE, re.MULTILINE)
    shown = {f"{folder}/{name}.py" for folder, names in rows for name in names.split(", ")}
    entered = files["`with lock()`: acquire and release"]
    assert shown, "the table of the way is not found on the page"
    assert shown <= entered, sorted(shown - entered)


def test_the_page_shows_figures_of_each_trip(files: dict[str, set[str]]) -> None:
    assert len(files) == 4
    for name in files:
        assert re.search(rf"^\| {re.escape(name)} \| \d+ \| \d+ \|", PAGE, re.MULTILINE), name
