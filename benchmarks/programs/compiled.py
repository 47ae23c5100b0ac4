"""The cost of a pair without the kernel if Cython has compiled engine/ and wire/, as they are.

`uv run --group release python -m benchmarks compiled` compiles a copy for some minutes, measures
pairs (`workloads/hot.py`) of the copy and of the source in turn, and prints the best of each. It
needs a C compiler.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns, which
from tempfile import TemporaryDirectory

from benchmarks.harness.workers import ROOT

ROUNDS = 3
FOLDERS = ("redlock_django/engine", "redlock_django/wire")
PAIRS = """
from benchmarks.peers.ours import Threads
from benchmarks.workloads.hot import cost
from redlock_django.testing import local_masters

with local_masters(5) as masters:
    contender = Threads([("127.0.0.1", master.port) for master in masters])
    print(cost(contender, seconds=2.0)["cpu_us"])
"""


def main() -> None:
    """Print the processor time of a pair, compiled and not."""
    if which("cythonize") is None:
        sys.exit("Cython is missing: uv run --group release python -m benchmarks compiled")
    with TemporaryDirectory(prefix="redlock-compiled-") as folder:
        copy = Path(folder)
        _build(copy)
        best = {copy: float("inf"), ROOT: float("inf")}
        for _ in range(ROUNDS):
            for tree in best:
                best[tree] = min(best[tree], _measured(tree))
    print(f"compiled {best[copy]:.1f} µs, as it is {best[ROOT]:.1f} µs")


def _build(copy: Path) -> None:
    for tree in ("redlock_django", "benchmarks"):
        unneeded = ignore_patterns("__pycache__", ".*")
        copytree(ROOT / tree, copy / tree, ignore=unneeded)
    files = [
        str(file.relative_to(copy))
        for folder in FOLDERS
        for file in sorted((copy / folder).rglob("*.py"))
        if file.name != "__init__.py"
    ]
    command = ["cythonize", "-q", "-3", "-i", "-j", f"{os.cpu_count() or 1}"]
    # Type hints must not be enforced, so that the code does what it does uncompiled.
    command += ["-X", "annotation_typing=False", *files]
    silent = {**os.environ, "CFLAGS": "-O2 -w"}  # the C compiler's warnings concern generated code
    subprocess.run(command, cwd=copy, env=silent, check=True)


def _measured(tree: Path) -> float:
    command = [sys.executable, "-P", "-c", PAIRS]
    path = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        command, cwd=tree, env=path, check=True, stdout=subprocess.PIPE, text=True
    )
    return float(done.stdout)
