"""Real processes of `manage.py lead`, and what their programs have noted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("program.py")


class Start(NamedTuple):
    """That a program has started: its process, the moment, and the number of its supervisor."""

    pid: int
    at: float
    supervisor: int


class Supervisors:
    """Processes that campaign for one name, with numbers from 0."""

    def __init__(self, directory: Path, redlock: dict[str, Any]) -> None:
        self.notes = directory / "notes"
        self.notes.touch()
        code = f"from testproject.settings import *\nREDLOCK = {redlock!r}\n"
        (directory / "leading.py").write_text(code)
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}",
            "DJANGO_SETTINGS_MODULE": "leading",
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def program(self, *words: str) -> list[str]:
        """Return the command of the program that notes its starts."""
        return [sys.executable, "-S", str(PROGRAM), str(self.notes), *words]

    def start(
        self, *options: str, program: list[str] | None = None, command: str = "lead"
    ) -> subprocess.Popen[bytes]:
        """Start a supervisor."""
        with (self.notes.parent / "errors").open("ab") as errors:
            process = subprocess.Popen(
                [
                    *(
                        sys.executable,
                        str(ROOT / "manage.py"),
                        command,
                        "scheduler",
                        *options,
                        "--",
                    ),
                    *(program or self.program()),
                ],
                env={**self.environment, "SUPERVISOR": str(len(self.processes))},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        self.processes.append(process)
        return process

    def _lines(self) -> list[list[str]]:
        # The last line may not be whole yet.
        return [line.split() for line in self.notes.read_text().splitlines(keepends=True)
                if line.endswith("\n")]  # fmt: skip

    def starts(self) -> list[Start]:
        """Return the starts of programs so far."""
        return [
            Start(int(pid), float(at), int(supervisor))
            for word, pid, at, supervisor in self._lines()
            if word == "start"
        ]

    def overlaps(self) -> int:
        """Return how often a program started while another was alive."""
        return sum(line[0] == "two" for line in self._lines())

    def next_start(self, before: int) -> Start:
        """Wait for the start after the first `before` ones."""
        until(lambda: len(self.starts()) > before, "the next start")
        return self.starts()[before]

    def leader(self) -> subprocess.Popen[bytes]:
        """Return the supervisor whose program started last."""
        return self.processes[self.starts()[-1].supervisor]

    def end(self) -> None:
        """Kill what is left."""
        for process in self.processes:
            process.kill()
            process.wait()
        for start in self.starts():
            with suppress(FileNotFoundError, ProcessLookupError):
                if str(PROGRAM) in Path(f"/proc/{start.pid}/cmdline").read_text():
                    os.kill(start.pid, signal.SIGKILL)


@contextmanager
def supervisors(directory: Path, redlock: dict[str, Any]) -> Iterator[Supervisors]:
    """Yield supervisors that use these settings; none is left after the block."""
    made = Supervisors(directory, redlock)
    try:
        yield made
    finally:
        made.end()


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before the open, or before the read
        return False


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def sockets(pid: int) -> int:
    """Return how many sockets a process has."""
    found = 0
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            found += os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:")
    return found


def moment() -> float:
    """Return the clock of the notes."""
    return time.monotonic()
