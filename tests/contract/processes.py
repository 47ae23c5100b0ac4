"""Three processes that run the same lines of Python, with locks in a database of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from django.db import connections

from tests.contract.stores import DATABASE

if TYPE_CHECKING:
    from pytest_django import Settings

MANY = 3


def run_in_processes(settings: Settings, folder: Path, lines: str) -> None:
    """Run the lines in three processes at once, in that folder; each of them must succeed.

    The locks of `lock()` are in the database of the default alias.
    """
    database = connections.settings[settings.REDLOCK["default"]["DATABASE"]]
    entry = {name: str(database[name]) for name in ("ENGINE", "NAME", "HOST", "PORT", "USER")}
    script = f"""
import os, django
from django.conf import settings
settings.configure(
    DATABASES={{"default": {entry!r}}}, INSTALLED_APPS=["redlock_django"],
    REDLOCK={{"default": {{"BACKEND": "{DATABASE}", "DATABASE_TIMEOUT": 20}}}},
)
django.setup()
from redlock_django import lock
{lines}"""
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    children = [
        subprocess.Popen([sys.executable, "-c", script], cwd=folder, env=path) for _ in range(MANY)
    ]
    try:
        assert [child.wait(60) for child in children] == [0] * MANY
    finally:
        for child in children:
            child.kill()
            child.wait()
