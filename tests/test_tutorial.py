"""docs/tutorial/shop.md, followed from its first line to its last in a new folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from redlock_django.testing.processes import ProcessGroup
from tests.ports import free_port
from tests.test_documents import FENCE, ROOT

pytestmark = [pytest.mark.live, pytest.mark.slow]

PAGE = (ROOT / "docs/tutorial/shop.md").read_text()
PART = re.compile(
    r"^```(?P<kind>\w+)\n(?P<code>.*?)^```|(?<=\n\n)(?P<shell>(?: {4}[^\n]+\n)+)",
    re.MULTILINE | re.DOTALL,
)
SERVER = "python manage.py runserver"


@pytest.fixture
def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


@pytest.mark.nightly  # by day, tests/test_readme.py pastes a quick start
def test_every_step_shows_the_output_of_the_page(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    site, shown, served = tmp_path, "", False
    for part in PART.finditer(PAGE):
        where = PAGE[: part.start()].rstrip().rsplit("\n", 1)[-1]
        code, shell = part["code"], part["shell"]
        if part["kind"] == "python":
            write(site, where, code)
        elif part["kind"] == "text":
            for line in code.splitlines():
                assert line in shown, f"after {where!r}"
        elif SERVER in shell:
            served = True
        else:
            lines = "\n".join(line.strip() for line in shell.splitlines())
            lines = lines.removeprefix("pip install redlock-django\n")
            if served and "curl" in lines:
                with serving(site, environment) as address:
                    shown = run(lines.replace("localhost:8000", address), site, environment)
            else:
                shown = run(lines, site, environment)
            if "startproject" in lines:
                site /= "site1"


def test_every_block_is_a_step() -> None:
    kinds = [part["kind"] or "shell" for part in PART.finditer(PAGE)]
    assert len(kinds) - kinds.count("shell") == PAGE.count("\n```") / 2
    assert kinds.count("shell") == len(re.findall(r"\n\n {4}\S", FENCE.sub("", PAGE)))
    assert {"python", "text", "shell"} == set(kinds)


def write(site: Path, where: str, code: str) -> None:
    """Write a block of the page into the file that the sentence before it names."""
    [name] = re.findall(r"`([\w./]+\.py)`", where)
    file = site / name
    if "At the end of" in where:
        code = file.read_text() + code
    elif "@csrf_exempt" in code and "    ...\n" in code:
        before, view = code.replace("    ...\n", "").split("@csrf_exempt", 1)
        old = re.split(
            r"@csrf_exempt.*?def pay\(request, pk\):\n", file.read_text(), flags=re.DOTALL
        )
        code = old[0] + before + "@csrf_exempt" + view + old[1]
    # On a busy machine the requests of two clients begin at different times.
    file.write_text(code.replace("time.sleep(1)", "time.sleep(3)"))


def run(lines: str, where: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-e"], input=lines, cwd=where, env=environment, timeout=90, check=False,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@contextmanager
def serving(site: Path, environment: dict[str, str]) -> Iterator[str]:
    """Start the server of the page at another port, and yield its address.

    It does not answer yet, as after a change of the code. What the page says must work anyway.
    """
    address = f"127.0.0.1:{free_port()}"
    with ProcessGroup("redlock-tutorial-") as processes, (site / "log").open("wb") as log:
        processes.spawn(
            [sys.executable, "manage.py", "runserver", "--noreload", address],
            cwd=site, env=environment, stdout=log, stderr=log,
        )  # fmt: skip
        yield address
