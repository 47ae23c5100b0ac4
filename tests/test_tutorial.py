"""docs/tutorial/shop.md, followed from its first line to its last in a new folder."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from redlock_django.testing.processes import ProcessGroup
from tests.pages import ENVIRONMENT, Page, paste
from tests.ports import free_port

pytestmark = [pytest.mark.live, pytest.mark.slow]

PAGE = Page("docs/tutorial/shop.md")
PART = re.compile(
    r"^```(?P<kind>\w+)\n(?P<code>.*?)^```|(?<=\n\n)(?P<shell>(?: {4}[^\n]+\n)+)",
    re.MULTILINE | re.DOTALL,
)
SERVER = "python manage.py runserver"


@pytest.mark.nightly  # by day, tests/newcomer.py pastes the quick start
def test_every_step_shows_the_output_of_the_page(tmp_path: Path) -> None:
    site, shown, served = tmp_path, "", False
    for part in PART.finditer(PAGE.text):
        where = PAGE.text[: part.start()].rstrip().rsplit("\n", 1)[-1]
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
            lines = re.sub(r"^pip install .*\n", "", lines, flags=re.MULTILINE)  # it is installed
            if served and "curl" in lines:
                with serving(site) as address:
                    shown = paste(lines.replace("localhost:8000", address), site, "-e")
            else:
                shown = paste(lines, site, "-e")
            if "startproject" in lines:
                site /= "site1"


def test_every_block_is_a_step() -> None:
    kinds = [part["kind"] or "shell" for part in PART.finditer(PAGE.text)]
    assert len(kinds) - kinds.count("shell") == PAGE.text.count("\n```") / 2
    assert kinds.count("shell") == len(re.findall(r"\n\n {4}\S", PAGE.prose))
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


@contextmanager
def serving(site: Path) -> Iterator[str]:
    """Start the server of the page at another port, and yield its address.

    It does not answer yet, as after a change of the code. What the page says must work anyway.
    """
    address = f"127.0.0.1:{free_port()}"
    with ProcessGroup("redlock-tutorial-") as processes, (site / "log").open("wb") as log:
        processes.spawn(
            [sys.executable, "manage.py", "runserver", "--noreload", address],
            cwd=site, env=ENVIRONMENT, stdout=log, stderr=log,
        )  # fmt: skip
        yield address
