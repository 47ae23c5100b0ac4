"""The way of a lock through the package, as `python -m tests.walk` prints it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.pages import ROOT

pytestmark = pytest.mark.slow


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
    assert len(files) == 4
    assert not {file for file in files["its replay"] if file.startswith(("wire/", "backends/"))}
