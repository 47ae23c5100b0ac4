"""Two hundred processes that want one lock in PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.postgres import local_postgres

CROWD = r"""
import os, sys, time, django
from django.conf import settings
settings.configure(
    DATABASES={"default": {entry!r}}, INSTALLED_APPS=["redlock_django"],
    REDLOCK={"default": {"BACKEND": "redlock_django.backends.database.DatabaseBackend",
                         "DATABASE_TIMEOUT": 30, "CONNECTIONS": 1}},
)
django.setup()
from django.core.management import call_command
from redlock_django import lock
call_command("migrate", verbosity=0)
from django.db import connections
connections.close_all()
children = []
for number in range({processes}):
    if (child := os.fork()) == 0:
        status = 1
        try:
            with lock("order:1", ttl=30, wait=200) as held:
                inside = os.open("inside", os.O_CREAT | os.O_EXCL)  # fails if another is inside
                with open("fences", "a") as fences:
                    fences.write(f"{held.fence}\n")
                os.close(inside)
                os.unlink("inside")
            status = 0
        finally:
            os._exit(status)
    children.append(child)
failed = sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)
print(f"{failed} failed")
"""


@pytest.mark.postgres
@pytest.mark.nightly
def test_two_hundred_processes_take_turns(tmp_path: Path) -> None:
    with local_postgres(most_connections=500) as entry:
        script = CROWD.replace("{entry!r}", repr(entry)).replace("{processes}", "200")
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
    assert done.stdout == "0 failed\n", done.stderr[-3000:]
    fences = [int(line) for line in (tmp_path / "fences").read_text().split()]
    assert len(fences) == 200
    assert fences == sorted(set(fences))
