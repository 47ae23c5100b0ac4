"""Python programs that a test starts as processes of their own, and talks to through pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SITE = """
import json, os, sys
from tests.programs import set_up
set_up(os.environ["SITE"])
from redlock_django import lock, locks
"""
"""The beginning of a program that uses locks."""


def set_up(site: str, *apps: str) -> None:
    """Set Django up with REDLOCK and other settings, as JSON."""
    import django
    from django.conf import settings

    if "backends.mysql" in site:
        import pymysql

        pymysql.install_as_MySQLdb()
    settings.configure(
        INSTALLED_APPS=[*apps, "redlock_django"], SECRET_KEY="of a test", **json.loads(site)
    )
    django.setup()


class Program(subprocess.Popen[str]):
    """A running program."""

    def say(self, line: str) -> None:
        """Send it a line."""
        assert self.stdin is not None
        self.stdin.write(f"{line}\n")
        self.stdin.flush()

    def hear(self) -> str:
        """Return the next line that it prints, or its errors if it has ended."""
        assert self.stdout is not None
        return self.stdout.readline().removesuffix("\n") or self.communicate(timeout=90)[1]


def run_to_its_end(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program, which fails on a warning, to its end; it may fail."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@contextmanager
def started(
    program: str,
    *words: str,
    ready: str = "ready",
    flags: Sequence[str] = (),
    env: dict[str, str] | None = None,
    cwd: Path = ROOT,
    redlock: Any = None,
    **settings: Any,
) -> Iterator[Program]:
    """Start a program and wait until it prints that it is ready; kill it at the end.

    With `redlock`, it is one of a site with that setting and other ones, and has `lock`. If `ready`
    is empty, do not wait.
    """
    program = textwrap.dedent(program)
    if redlock:
        program = SITE + program
        settings["REDLOCK"] = redlock
    with Program(
        [sys.executable, *flags, "-c", program, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {}), "SITE": json.dumps(settings)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert not ready or process.hear() == ready
            yield process
        finally:
            process.kill()
