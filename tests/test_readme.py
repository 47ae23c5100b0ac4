"""The quick start of README.md works when it is pasted into a new `startproject` site."""

from __future__ import annotations

import re
import socket
import time
from functools import partial
from pathlib import Path

import pytest
from django.test import RequestFactory

from redlock_django.testing import held_elsewhere, memory_masters
from tests.newcomer import README, TIMEOUTS, patient
from tests.pages import ROOT, Page, paste
from tests.ports import free_port
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.slow]

IDEMPOTENCY = Page("docs/how-to/idempotency.md")
MASTERS = "range(6379, 6384)"


def configure(site: Path, ports: list[int]) -> None:
    """Append the settings of the README to those of a site, with masters at other ports."""
    settings = README.code("In `site1/settings.py`") + README.code("For five Redis masters")
    assert settings.count(MASTERS) == 1
    with (site / "site1" / "settings.py").open("a") as file:
        file.write(settings.replace(MASTERS, str(ports)) + TIMEOUTS)


def test_the_quick_start_needs_no_server(tmp_path: Path) -> None:
    install, start = README.shell("## Quick start").splitlines()
    assert install == "pip install redlock-django"
    paste(start, tmp_path)
    site, port = tmp_path / "site1", free_port()
    with (site / "site1" / "settings.py").open("a") as file:
        file.write(README.code("In `site1/settings.py`"))
    (site / "site1" / "urls.py").write_text(patient(README.code("In `site1/urls.py`")))
    assert "identified no issues (0 silenced)" in paste("python manage.py check", site)
    lines = README.shell("Send two requests at the same time").replace(
        "noreload", f"noreload {port}"
    )
    began = time.monotonic()
    output = paste(lines.replace("localhost:8000", f"127.0.0.1:{port}"), site)
    assert time.monotonic() - began < 60
    assert re.findall(r"HTTP/1.1 (\d+)", output).count("423") == 1
    assert re.search(r"Retry-After: [1-9]", output)
    assert "Not Found" not in output, "the server logs a request that the page does not explain"
    assert output.count('{"paid": 7}') == 1
    # Django 6.1 has an error of its own for the mail backend of `startproject`.
    deploy = paste("python manage.py check --deploy --tag redlock", site)
    assert re.sub(r"\s+", " ", deploy).count("exclude the processes of this machine only") == 1


def test_the_checks_of_the_demo_find_nothing() -> None:
    assert "identified no issues (0 silenced)" in paste("python manage.py check", ROOT)


@pytest.mark.nightly  # by day, the quick start is pasted, and the demo has five masters
def test_the_shell_lines_work_when_they_are_pasted(tmp_path: Path) -> None:
    paste(README.shell("## Quick start").splitlines()[1], tmp_path)
    site, ports = tmp_path / "site1", [free_port() for _ in range(6)]
    configure(site, ports[:5])
    (site / "site1" / "urls.py").write_text(patient(README.code("In `site1/urls.py`")))
    (site / "retry.py").write_text(IDEMPOTENCY.code("## Try it"))
    install, masters = README.shell("Start such masters").split("\n", 1)
    assert install.startswith("pip install")
    lines = "\n".join(
        [
            masters,
            README.shell("Send two requests at the same time"),
            "cp retry.py site1/urls.py",
            IDEMPOTENCY.shell("paid.append"),
            "kill $masters; wait $masters",
        ]
    )
    for known, other in (
        ("--noreload", f"--noreload {ports[5]}"),
        ("localhost:8000", f"127.0.0.1:{ports[5]}"),
    ):
        lines = lines.replace(known, other)
    output = paste(lines, site)
    assert re.findall(r"HTTP/1.1 (\d+)", output).count("423") == 1
    assert output.count('{"paid": 7}') == 1
    assert output.count('{"paid": 7, "payments": 1}') == 2
    assert "Not Found" not in output
    for port in ports:
        until(partial(is_closed, port), "the last lines have ended everything", seconds=20)


def is_closed(port: int) -> bool:
    with socket.socket() as probe:
        return bool(probe.connect_ex(("127.0.0.1", port)))


def test_the_examples_of_the_readme_run() -> None:
    with memory_masters():
        names = README.section("Examples").run()
        request = RequestFactory().post("/")
        with held_elsewhere("order:7"):
            assert names["pay"](request, pk=7).status_code == 423
