"""Run Spin on a model, and return what it found."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).parent
MEMORY = 8000  # MB
EXHAUSTIVE = ("-DCOLLAPSE", f"-DMEMLIM={MEMORY}")


class SpinError(Exception):
    """Spin or the C compiler failed, or the search is not complete."""


@dataclass(frozen=True)
class Run:
    """A search of all states of a model, with these macros: `NAME` or `NAME=number`.

    With `without`, the macros remove that rule, and an assertion must fail: the last line of its
    story is `finds`. That search is breadth first, so that its trail is the shortest. Any other
    visits `states` of them. With `live`, the claim of the model is checked too: what must happen at
    some time if every process that can go on does so at some time.
    """

    name: str
    macros: str
    without: str = ""
    finds: str = ""
    states: int = 0
    model: str = "lock.pml"
    daily: bool = False
    live: bool = False

    @property
    def flags(self) -> list[str]:
        """The macros as arguments of Spin."""
        return [f"-D{macro}" for macro in self.macros.split()]


@dataclass(frozen=True)
class Result:
    """The result of a search: the number of states, and the story of an error ("" if none)."""

    states: int
    seconds: float
    memory: float  # MB
    story: str


def missing() -> str:
    """Return which program is missing, or an empty string."""
    return next(
        (f"{name} is not installed" for name in ("spin", "cc") if not shutil.which(name)), ""
    )


def search(run: Run, *, timeout: float) -> Result:
    """Visit every state of a run, or those before the first error.

    Raises SpinError if states were left out.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in MODELS.glob("*.pml"):
            shutil.copy(model, folder)
        _output(folder, timeout, "spin", "-a", *run.flags, run.model)
        kind = ["-DNFAIR=3"] if run.live else ["-DSAFETY", "-DNOCLAIM"]
        if run.without and not run.live:
            kind.append("-DBFS")
        # To optimize takes the compiler longer than a short search.
        level = "-O0" if run.daily else "-O2"
        _output(folder, timeout, "cc", level, *EXHAUSTIVE, *kind, "-o", "pan", "pan.c")
        fair = ["-a", "-f"] if run.live else []
        output = _output(
            folder, timeout, "./pan", *fair, "-m1000000", "-w24" if run.daily else "-w26"
        )
        errors = re.search(r"errors: (\d+)", output)
        states = re.search(r"(\d+) states, stored", output)
        seconds = re.search(r"elapsed time ([\d.]+)", output)
        memory = re.search(r"([\d.]+)\s+total actual memory", output)
        if not (errors and states and seconds and memory) or _is_partial(output):
            raise SpinError(f"{run.name}: the search is not complete:\n{output}")
        story = ""
        if int(errors[1]):
            story = _story(_output(folder, timeout, "spin", "-t", *run.flags, run.model))
        return Result(int(states[1]), float(seconds[1]), float(memory[1]), story)


def _is_partial(output: str) -> bool:
    reasons = "max search depth too small", "reached -DMEMLIM", "out of memory", "aborting"
    return any(reason in output for reason in reasons)


def _story(trail: str) -> str:
    """Return the messages of a trail, a line each."""
    trail = trail.replace("<<<<<START OF CYCLE>>>>>", "STORY No other waiter is ever served.")
    lines = "\n".join(re.findall(r"STORY (.*)", trail))
    lines = lines.replace(", fence 0.", ".").replace(": DONE.", ".")
    return lines.replace("BURY", "RELEASE with a tombstone")


def _output(folder: Path, timeout: float, *command: str) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, timeout=timeout, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SpinError(f"{command[0]} took longer than {timeout:.0f} s") from error
    if done.returncode and command[0] != "./pan":
        raise SpinError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
