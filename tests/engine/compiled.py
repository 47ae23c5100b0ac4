"""Run very many seeds 1.5 times as fast, on a copy of engine and simulator compiled by Cython.

`uv run --group release python -m tests.engine.compiled --seeds 1000000 --done kept.txt` takes the
options of `tests.engine.sweep` and produces identical traces and digests. The first seeds also run
uncompiled, to check this. It needs a C compiler; the first run compiles for a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from shutil import copytree, ignore_patterns, rmtree, which
from tempfile import gettempdir

ROOT = Path(__file__).parents[2]
TREES = ("redlock_django", "tests/engine")
HOT = {
    "redlock_django/backends/memory": "commands keyspace master",
    "redlock_django/engine": (
        "attempt commands deployment fencing quorum refusal rounds validity waiting"
    ),
    "redlock_django/wire": "master steps waiters",
    "tests/engine": "clients client_store checker network simulator stepping world",
}
SAME = ("--first", "0", "--seeds", "20", "--jobs", "1")  # seeds that run both ways


def compiled_copy() -> Path:
    """Return the folder of the compiled copy of this source for this Python; make it if needed."""
    text = sha256(sys.version.encode())
    for tree in TREES:
        for file in sorted((ROOT / tree).rglob("*.py")):
            text.update(file.read_bytes())
    index = Path(gettempdir()) / f"redlock-compiled-{text.hexdigest()[:16]}"
    if not index.exists():
        _build(index)
    return index


def _build(index: Path) -> None:
    unfinished = index.with_suffix(f".{os.getpid()}")
    for tree in TREES:
        copytree(ROOT / tree, unfinished / tree, ignore=ignore_patterns("__pycache__"))
    for folder in (unfinished / "tests", unfinished / "tests/engine"):
        (folder / "__init__.py").touch()  # Cython finds a module's name by these
    files = [f"{folder}/{name}.py" for folder, names in HOT.items() for name in names.split()]
    command = ("cythonize", "-q", "-3", "-i", "-j", f"{os.cpu_count() or 1}")
    # Type hints must not be enforced, so that the code does what it does uncompiled.
    hints = ("-X", "annotation_typing=False")
    silent = {**os.environ, "CFLAGS": "-O2 -w"}  # the C compiler's warnings concern generated code
    try:
        subprocess.run([*command, *hints, *files], cwd=unfinished, env=silent, check=True)
        unfinished.rename(index)
    finally:
        rmtree(unfinished, ignore_errors=True)


def _output(index: Path) -> str:
    command = [sys.executable, "-P", "-m", "tests.engine.sweep", *SAME]
    path = {**os.environ, "PYTHONPATH": str(index)}
    done = subprocess.run(command, env=path, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def main(argv: list[str]) -> None:
    """Run the command line of `sweep` on the compiled copy."""
    if which("cythonize") is None:
        sys.exit("Cython is missing: uv run --group release python -m tests.engine.compiled")
    index = compiled_copy()
    if _output(index) != _output(ROOT):
        sys.exit("the compiled copy produces other traces from the same seeds")
    os.environ["PYTHONPATH"] = str(index)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "tests.engine.sweep", *argv])


if __name__ == "__main__":
    main(sys.argv[1:])
