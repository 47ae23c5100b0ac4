"""Containers that start at once: one migrates an empty database, the rest wait and go on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.live.leading.supervisors import ROOT
from tests.live.test_leading import settings_for, three

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster

__all__ = ["three"]  # a fixture

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]

containers = pytest.mark.parametrize("containers", [2, pytest.param(4, marks=pytest.mark.nightly)])


@pytest.fixture
def empty_database(postgres: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the entry of a new database without tables."""
    about = f"host={postgres['HOST']} port={postgres['PORT']} user={postgres['USER']}"
    with closing(psycopg.connect(f"{about} dbname=postgres", autocommit=True)) as server:
        server.execute("CREATE DATABASE deployed")
        yield {**postgres, "NAME": "deployed"}
        server.execute("DROP DATABASE deployed WITH (FORCE)")


def started(directory: Path, redlock: dict[str, Any], database: dict[str, Any],
            command: list[str], containers: int) -> list[str]:  # fmt: skip
    """Run the containers; return what each has written."""
    databases = {"default": database, "direct": database}
    code = f"""
from testproject.settings import *
DATABASES = {databases!r}
REDLOCK = {redlock!r}
REDLOCK["jobs"] = {{**REDLOCK["default"], "MAX_HOLD": 3600}}
"""
    (directory / "deployed.py").write_text(code)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}",
        "DJANGO_SETTINGS_MODULE": "deployed",
    }
    running = [
        subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(containers)
    ]
    written = [process.communicate(timeout=90)[0] for process in running]
    assert [process.returncode for process in running] == [0] * containers, written
    return written


def check(written: list[str]) -> None:
    assert sum("Applying shop.0001_initial" in text for text in written) == 1
    assert sum("No migrations to apply" in text for text in written) == len(written) - 1


@containers
def test_one_migrates_under_a_lock_in_redis(
    three: list[LocalMaster], empty_database: dict[str, Any], tmp_path: Path, containers: int
) -> None:
    manage = str(ROOT / "manage.py")
    command = [*(manage, "with_lock", "migrate", "--wait", "600", "--using", "jobs", "--"),
               *(sys.executable, manage, "migrate")]  # fmt: skip
    check(started(tmp_path, settings_for(three), empty_database, command, containers))


@containers
def test_one_migrates_under_a_transaction_where_the_locks_have_no_table_yet(
    empty_database: dict[str, Any], tmp_path: Path, containers: int
) -> None:
    redlock = {"default": {"BACKEND": "redlock_django.backends.database.DatabaseBackend"}}
    command = [str(ROOT / "tests/live/leading/migrate_once.py")]
    check(started(tmp_path, redlock, empty_database, command, containers))
