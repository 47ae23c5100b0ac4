"""Containers that start at once: one migrates an empty database, the rest wait and go on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.aliases import new_database
from tests.programs import ROOT

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]

SETTINGS = """
from testproject.settings import *
DATABASES = {{"default": {database!r}, "direct": {database!r}}}
REDLOCK = {{"default": {{"BACKEND": "redlock_django.backends.database.DatabaseBackend"}}}}
"""


@pytest.fixture
def empty_database(postgres: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the entry of a new database without tables."""
    with new_database(postgres, "deployed") as entry:
        yield entry


@pytest.mark.parametrize("containers", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_one_migrates_under_a_transaction_where_the_locks_have_no_table_yet(
    empty_database: dict[str, Any], tmp_path: Path, containers: int
) -> None:
    (tmp_path / "deployed.py").write_text(SETTINGS.format(database=empty_database))
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
        "DJANGO_SETTINGS_MODULE": "deployed",
    }
    running = [
        subprocess.Popen(
            [sys.executable, ROOT / "tests/live/migrate_once.py"],
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
    assert sum("Applying shop.0001_initial" in text for text in written) == 1
    assert sum("No migrations to apply" in text for text in written) == containers - 1
