"""Processes of the last release and of this tree share masters, a database and its tables."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.aliases import new_database
from tests.timeouts import generous_timeouts

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.nightly, pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "tests/live/last_release_site.py"
BEFORE_THE_FIRST = "bb96753b"
"""The commit that is taken for the last release until one is tagged.

It is the first with the tables of the first release, which one migration creates.
"""
TIMES = 30  # that each process adds 1
DATABASE = "redlock_django.backends.database.DatabaseBackend"


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)


def last_release() -> str:
    """Return the newest tag of a release before this commit, or the commit that stands for it."""
    tags = git("tag", "--list", "[0-9]*", "--merged", "HEAD~", "--sort=-version:refname")
    return next(iter(tags.stdout.decode().split()), BEFORE_THE_FIRST)


@pytest.fixture(scope="session")
def old_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the wheel of the last release, and return a Python that has it and not this tree."""
    home, release = tmp_path_factory.mktemp("last_release"), last_release()
    files = git("archive", "--format=tar", release)
    if files.returncode:
        pytest.skip(f"git has no {release} here: this is not a checkout with its whole history")
    tree, python = home / "tree", home / "venv/bin/python"
    tree.mkdir()
    subprocess.run(["tar", "x"], input=files.stdout, cwd=tree, check=True)
    for command in (
        ("uv", "build", "-q", "--wheel", "--out-dir", home / "dist"),
        ("uv", "venv", "-q", "-p", sys.executable, home / "venv"),
    ):
        subprocess.run(command, cwd=tree, check=True)
    (wheel,) = (home / "dist").glob("*.whl")
    install = ("uv", "pip", "install", "-q", "--compile-bytecode", "-p", python)
    subprocess.run([*install, wheel, "psycopg[binary]>=3.2.1"], cwd=home, check=True)
    return str(python)


@dataclass
class Fleet:
    """Processes of both releases with the same settings."""

    settings: dict[str, Any]
    directory: Path
    pythons: dict[str, str]

    def start(self, release: str, *command: str) -> subprocess.Popen[str]:
        """Start a command of the site with the code of a release, "old" or "new"."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["SITE"] = json.dumps(self.settings)
        if release == "new":
            environment["PYTHONPATH"] = str(ROOT)
        return subprocess.Popen(
            [self.pythons[release], "-P", SITE, *command],
            cwd=self.directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, release: str, *command: str) -> str:
        """Run a command, and return what it printed."""
        return printed(self.start(release, *command))

    @contextmanager
    def held(self, release: str, key: str) -> Iterator[None]:
        """Hold a lock in a process during the block."""
        process = self.start(release, "hold", key)
        assert process.stdin is not None
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("held "), first + printed(process)
        yield
        assert printed(process, "\n") == "released\n"


def printed(process: subprocess.Popen[str], given: str | None = None) -> str:
    """Wait until a process ends, and return what it printed."""
    try:
        out, errors = process.communicate(given, timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, out + errors
    return out


Open = Callable[[str], Fleet]


@pytest.fixture
def open_fleet(
    old_python: str, postgres: dict[str, Any], masters: list[LocalMaster], tmp_path: Path
) -> Iterator[Open]:
    """Return a function that makes a fleet whose locks are in a store; its database is empty."""

    def fleet(store: str) -> Fleet:
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "site.sqlite3")}
        section: dict[str, Any] = {"BACKEND": DATABASE, "DATABASE_TIMEOUT": 10}
        if store == "redis":
            urls = [master.url for master in masters]
            section = {"MASTERS": urls, "RESTART_DELAY": 0, **generous_timeouts(30)}
        elif store == "postgresql":
            name = f"fleet_{secrets.token_hex(4)}"
            database = databases.enter_context(new_database(postgres, name))
        section["TTL"] = 30  # longer than any process of a busy machine needs to renew it
        settings = {"DATABASES": {"default": database}, "REDLOCK": {"default": section}}
        return Fleet(settings, tmp_path, {"old": old_python, "new": sys.executable})

    with ExitStack() as databases:
        yield fleet


def test_the_old_python_has_the_wheel_and_not_this_tree(open_fleet: Open) -> None:
    """Otherwise the other tests would compare a release with itself."""
    pythons = open_fleet("redis").pythons
    where = "import redlock_django; print(redlock_django.__file__)"
    found = subprocess.run(
        [pythons["old"], "-P", "-c", where], capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith(str(Path(pythons["old"]).parents[1]))


@pytest.mark.parametrize("store", ["redis", "postgresql", "sqlite"])
def test_both_releases_exclude_each_other_and_their_fences_grow(
    open_fleet: Open, store: str
) -> None:
    fleet = open_fleet(store)
    if store != "redis":
        fleet.run("old", "migrate")
    for holder, other in (("old", "new"), ("new", "old")):
        with fleet.held(holder, "order:1"):
            assert fleet.run(other, "attempt", "order:1") == "locked\n"
        assert fleet.run(other, "attempt", "order:1").startswith("free ")
    file = fleet.directory / "counter"
    file.write_text("0")
    command = ("count", "counter", str(file), str(TIMES))
    with fleet.held("old", "counter"):
        running = [(release, fleet.start(release, *command)) for release in ("old", "new") * 2]
        for _, process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "begins\n", printed(process)
    done = [
        (int(value), int(fence), release)
        for release, process in running
        for fence, value in map(str.split, printed(process).splitlines())
    ]
    done.sort()
    assert file.read_text() == str(4 * TIMES) == str(len(done))
    assert [value for value, _, _ in done] == [*range(1, 4 * TIMES + 1)]
    fences = [fence for _, fence, _ in done]
    assert fences == sorted({*fences})
    turns = {(one, next_) for (_, _, one), (_, _, next_) in pairwise(done)}
    assert {("old", "new"), ("new", "old")} <= turns, "each has taken the lock after the other"


def test_both_releases_exclude_each_other_beside_two_dead_masters(
    open_fleet: Open, masters: list[LocalMaster]
) -> None:
    fleet = open_fleet("redis")
    for holder, other in (("old", "new"), ("new", "old")):
        with fleet.held(holder, "order:1"):
            for master in masters[:2]:
                master.kill()
            assert fleet.run(other, "attempt", "order:1") == "locked\n"
        for master in masters[:2]:
            master.start()


@pytest.mark.parametrize("store", ["postgresql", "sqlite"])
def test_a_request_of_one_release_is_replayed_by_the_other(open_fleet: Open, store: str) -> None:
    fleet = open_fleet(store)
    fleet.run("old", "migrate")
    for first, second in (("old", "new"), ("new", "old")):
        status, _, paid = json.loads(fleet.run(first, "send", f"{first}-1", "5"))
        assert status == 201
        assert json.loads(fleet.run(second, "send", f"{first}-1", "5")) == [201, "true", paid]
        status, _, refused = json.loads(fleet.run(second, "send", f"{first}-1", "6"))
        assert status == 422, refused


@pytest.mark.parametrize("store", ["postgresql", "sqlite"])
def test_the_old_release_works_on_the_new_tables_and_again_after_they_are_reversed(
    open_fleet: Open, store: str
) -> None:
    fleet = open_fleet(store)
    fleet.run("old", "migrate")
    status, _, paid = json.loads(fleet.run("old", "send", "1", "5"))
    assert status == 201
    last_of_old = fleet.run("old", "newest").strip()
    for target in ((), (last_of_old,)):
        fleet.run("new", "migrate", *target)
        for release in ("old", "new") if target == () else ("old",):
            assert fleet.run(release, "attempt", "order:1").startswith("free ")
            assert json.loads(fleet.run(release, "send", "1", "5")) == [201, "true", paid]
