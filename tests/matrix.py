"""Run the tests with each supported combination of Python, Django, libraries and server.

    python -m tests.matrix                      # all sessions that this machine can run
    python -m tests.matrix --quick lowest py3.14-django6.1
    python -m tests.matrix redis7 -- -x tests/wire
    python -m tests.matrix --list
    python -m tests.matrix --pythons                # the supported ones of this machine, by age

Needs uv, and nothing else: each session has an environment of its own below `.matrix/`. A session
whose Python or server is not here is skipped, and fails if it was named. The tests themselves start
Valkey, PostgreSQL, MariaDB and ZooKeeper, and use SQLite; `redis7` runs them on redis-server.
`lowest` has exactly the lowest versions that pyproject.toml allows of what users install.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
QUICK = ["-m", "not slow and not live and not postgres and not nightly"]
REST_TESTS = (
    *("tests/app/test_api_frameworks.py", "tests/contrib"),
    *("tests/idempotency/test_idempotent_apis.py", "tests/idempotency/test_authentication.py"),
)


@dataclass(frozen=True)
class Session:
    """A Python, requirements that narrow those of the project, a server, and pytest's arguments.

    With `lowest`, the requirements are the lowest versions that the project allows.
    """

    python: str
    requirements: tuple[str, ...] = ()
    server: str = ""
    arguments: tuple[str, ...] = ()
    lowest: bool = False


def lowest(python: Path) -> list[str]:
    """Return the lowest accepted version of each dependency and extra, and what these need."""
    compiled = subprocess.run(
        [
            *("uv", "pip", "compile", "-q", "--no-header", "--no-annotate", "-p", str(python)),
            *("--resolution", "lowest-direct", "--all-extras", "pyproject.toml"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return compiled.stdout.splitlines()


def sessions() -> Iterator[tuple[str, Session]]:
    """Yield all sessions by name."""
    for python, django in product(PYTHONS, ("5.2", "6.0", "6.1")):
        if python != "3.11" or django == "5.2":  # Django 6 needs Python 3.12
            yield f"py{python}-django{django}", Session(python, (f"Django=={django}.*",))
    # REST framework 3.15 registers its converter once for each router of the tests.
    quiet = ("-W", "ignore:Converter 'drf_format_suffix'")
    yield "lowest", Session(PYTHONS[0], arguments=quiet, lowest=True)
    for version in ("3.15", "3.16", "3.17", "3.18"):
        yield (
            f"drf{version}",
            Session("3.11", (f"djangorestframework=={version}.*",), "", (*quiet, *REST_TESTS)),
        )
    yield "redis7", Session("3.11", (), "redis-server", ("tests/live", "tests/wire"))


SESSIONS = dict(sessions())


def interpreter(version: str) -> str:
    """Return the path of a Python, "" if it is not here."""
    found = subprocess.run(
        ["uv", "python", "find", "--no-project", "--system", version],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode == 0:
        return found.stdout.strip()
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return str(next(pyenv.glob(f"versions/{version}.*/bin/python"), ""))


def pythons() -> dict[str, str]:
    """Return the path of each supported Python of this machine by its version, the oldest first."""
    return {version: path for version in PYTHONS if (path := interpreter(version))}


def missing(session: Session) -> str:
    """Return what this machine lacks for a session, "" if it lacks nothing."""
    if not interpreter(session.python):
        return f"Python {session.python}"
    return "" if not session.server or shutil.which(session.server) else session.server


def run(name: str, extra: list[str]) -> int:
    """Create the environment of a session, and return pytest's exit status in it."""
    session = SESSIONS[name]
    python = ROOT / ".matrix" / name / "bin" / "python"
    if not python.exists():
        here = interpreter(session.python)
        subprocess.run(
            ["uv", "venv", "-q", "--no-project", "-p", here, str(python.parents[1])], check=True
        )
    install = ["uv", "pip", "install", "-q", "--compile-bytecode", "-p", str(python)]
    requirements = lowest(python) if session.lowest else session.requirements
    if session.lowest:
        print(*requirements, sep="\n", flush=True)
    subprocess.run([*install, "--group", "dev", "-e", ".", *requirements], cwd=ROOT, check=True)
    environment = dict(os.environ)
    if session.server:
        environment["REDLOCK_SERVER"] = str(shutil.which(session.server))
    arguments = [*session.arguments, *extra]
    return subprocess.run(
        [python, "-m", "pytest", "--slow", *arguments], cwd=ROOT, env=environment, check=False
    ).returncode


def main(argv: list[str] | None = None) -> int:
    """Run sessions one after the other, and return 1 if one of them failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.matrix",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="session", help="default: all of them")
    parser.add_argument("--quick", action="store_true", help="without servers and long tests")
    parser.add_argument("--list", action="store_true", help="print the sessions, and run none")
    parser.add_argument("--pythons", action="store_true", help="print the Pythons, and run none")
    own, extra = _split(sys.argv[1:] if argv is None else argv)
    options = parser.parse_args(own)
    if unknown := set(options.names) - set(SESSIONS):
        parser.error(f"no session {', '.join(sorted(unknown))}. There are {', '.join(SESSIONS)}.")
    if options.quick:
        extra = [*QUICK, *extra]
    if options.pythons:
        print(*(f"{version} {path}" for version, path in pythons().items()), sep="\n")
        return 0
    failed = False
    for name in options.names or SESSIONS:
        lacking = missing(SESSIONS[name])
        if options.list or lacking:
            print(f"{name}: {f'{lacking} is missing' if lacking else 'can run here'}", flush=True)
            failed |= bool(lacking and name in options.names)
            continue
        print(f"== {name}", flush=True)
        failed |= bool(run(name, extra))
    return int(failed)


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """Split arguments at "--", from which on they are pytest's."""
    place = argv.index("--") if "--" in argv else len(argv)
    return argv[:place], argv[place + 1 :]


if __name__ == "__main__":
    sys.exit(main())
