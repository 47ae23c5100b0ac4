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
import django
from django.conf import settings
redlock = json.loads(os.environ["SITE"])
settings.configure(INSTALLED_APPS=["redlock_django"], REDLOCK=redlock, SECRET_KEY="of a test")
django.setup()
from redlock_django import lock
"""
"""The beginning of a program that uses locks."""


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


@contextmanager
def started(
    program: str,
    *words: str,
    ready: str = "ready",
    flags: Sequence[str] = (),
    env: dict[str, str] | None = None,
    redlock: Any = None,
) -> Iterator[Program]:
    """Start a program and wait until it prints that it is ready; kill it at the end.

    With `redlock`, it is one of a site with that setting, and has `lock`.
    """
    program = textwrap.dedent(program)
    with Program(
        [sys.executable, *flags, "-c", SITE + program if redlock else program, *words],
        cwd=ROOT,
        env={**os.environ, **(env or {}), "SITE": json.dumps(redlock)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.hear() == ready
            yield process
        finally:
            process.kill()
