"""The quick start of README.md works when it is pasted into a new `startproject` site."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.test import RequestFactory

from redlock_django.testing import held_elsewhere, memory_masters
from redlock_django.testing.masters import LocalMaster
from tests.newcomer import README, TIMEOUTS, code, commands, patient
from tests.ports import free_port
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent
IDEMPOTENCY = (ROOT / "docs/how-to/idempotency.md").read_text()
MASTERS = "range(6379, 6384)"


@pytest.fixture
def site(masters: list[LocalMaster], tmp_path: Path) -> Path:
    manage(ROOT, "-m", "django", "startproject", "site1", str(tmp_path))
    configure(tmp_path, [master.port for master in masters])
    (tmp_path / "site1" / "urls.py").write_text(patient(code(README, "In `site1/urls.py`")))
    return tmp_path


def configure(site: Path, ports: list[int]) -> None:
    """Append the settings of the README to those of a site, with masters at other ports."""
    settings = code(README, "In `site1/settings.py`") + code(README, "For five Redis masters")
    assert settings.count(MASTERS) == 1
    with (site / "site1" / "settings.py").open("a") as file:
        file.write(settings.replace(MASTERS, str(ports)) + TIMEOUTS)


def manage(where: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=where,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def paste(lines: str, where: Path) -> str:
    """Paste lines into a shell, and return what it shows."""
    environment = {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONUNBUFFERED": "1",
    }
    # The shell reads the lines from stdin, as from a terminal: no command may read them.
    done = subprocess.run(
        ["bash"], input=lines, cwd=where, env=environment, timeout=90, check=False,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_quick_start_needs_no_server(tmp_path: Path) -> None:
    install, start = commands(README, "## Quick start").splitlines()
    assert install == "pip install redlock-django"
    paste(start, tmp_path)
    site, port = tmp_path / "site1", free_port()
    with (site / "site1" / "settings.py").open("a") as file:
        file.write(code(README, "In `site1/settings.py`"))
    (site / "site1" / "urls.py").write_text(patient(code(README, "In `site1/urls.py`")))
    assert "identified no issues (0 silenced)" in manage(site, "manage.py", "check")
    lines = commands(README, "Send two requests at the same time").replace(
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
    assert "identified no issues (0 silenced)" in manage(ROOT, "manage.py", "check")


@pytest.mark.nightly  # by day, the quick start is pasted, and the demo has five masters
def test_the_shell_lines_work_when_they_are_pasted(tmp_path: Path) -> None:
    paste(commands(README, "## Quick start").splitlines()[1], tmp_path)
    site, ports = tmp_path / "site1", [free_port() for _ in range(6)]
    configure(site, ports[:5])
    (site / "site1" / "urls.py").write_text(patient(code(README, "In `site1/urls.py`")))
    (site / "retry.py").write_text(code(IDEMPOTENCY, "## Try it"))
    install, masters = commands(README, "Start such masters").split("\n", 1)
    assert install.startswith("pip install")
    retry = IDEMPOTENCY[IDEMPOTENCY.index("paid.append") :]
    lines = "\n".join(
        [
            masters,
            commands(README, "Send two requests at the same time"),
            "cp retry.py site1/urls.py",
            commands(retry, "paid.append"),
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


@contextmanager
def serving(site: Path) -> Iterator[str]:
    assert manage(site, "manage.py", "redlock_init").count("trusted now") == 5
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "manage.py", "runserver", "--noreload", f"127.0.0.1:{port}"],
        cwd=site,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1"},
    )
    assert server.stdout is not None
    try:
        for line in server.stdout:
            if "Quit the server" in line:
                break
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def post(url: str, key: str, api_key: str = "me") -> tuple[int, bytes, str | None]:
    headers = (
        {"X-Api-Key": api_key, "Idempotency-Key": key} if api_key else {"Idempotency-Key": key}
    )
    request = urllib.request.Request(url, method="POST", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.status, answer.read(), answer.headers["Idempotent-Replayed"]


@pytest.mark.nightly
def test_a_repeated_post_gets_the_same_answer(site: Path) -> None:
    (site / "site1" / "urls.py").write_text(code(IDEMPOTENCY, "## Try it"))
    manage(site, "manage.py", "migrate", "-v0")
    with serving(site) as address:
        answers = [post(f"{address}/orders/7/pay/", "k-1") for _ in range(3)]
        other = post(f"{address}/orders/7/pay/", "k-2")
        other_client = post(f"{address}/orders/7/pay/", "k-1", "you")
        with pytest.raises(urllib.error.HTTPError, match="400"):
            post(f"{address}/orders/7/pay/", "k-1", "")
    body = b'{"paid": 7, "payments": 1}'
    assert answers == [(201, body, "false"), (201, body, "true"), (201, body, "true")]
    assert other == (201, b'{"paid": 7, "payments": 2}', "false")
    assert other_client == (201, b'{"paid": 7, "payments": 3}', "false")


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120
    prose = re.sub(r"```.*?```|^    .*$|\]\([^)]*\)", "", README, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) <= 600


def test_the_picture_of_the_readme_is_small() -> None:
    [picture] = re.findall(r"!\[[^\]]+\]\((\S+)\)", README)
    assert (ROOT / picture).stat().st_size < 150_000


def test_the_examples_of_the_readme_run() -> None:
    with memory_masters():
        names: dict[str, Any] = {}
        exec(code(README, "## Examples"), names)
        request = RequestFactory().post("/")
        with held_elsewhere("order:7"):
            assert names["pay"](request, pk=7).status_code == 423
