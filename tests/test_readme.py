"""The README's quick start, pasted into a fresh `startproject` site, does what it says."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from redlock_django.testing.masters import LocalMaster
from tests.ports import free_port

pytestmark = [pytest.mark.live, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def snippet(after: str) -> str:
    """The first Python block of the README behind a sentence."""
    found = re.search(r"```python\n(.*?)```", README[README.index(after) :], re.DOTALL)
    assert found
    return found[1]


@pytest.fixture
def site(masters: list[LocalMaster], tmp_path: Path) -> Path:
    manage(ROOT, "-m", "django", "startproject", "site1", str(tmp_path))
    settings = snippet("In `site1/settings.py`")
    for port, master in zip(("6379", "6380", "6381"), masters, strict=False):
        assert f"127.0.0.1:{port}" in settings
        settings = settings.replace(f"redis://127.0.0.1:{port}/0", master.url)
    with (tmp_path / "site1" / "settings.py").open("a") as file:
        file.write(settings)
    (tmp_path / "site1" / "urls.py").write_text(snippet("In `site1/urls.py`"))
    return tmp_path


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


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    assert manage(site, "manage.py", "redlock_init").count("trusted now") == 3
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


def get(url: str) -> tuple[int, str | None]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.headers["Retry-After"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Retry-After"]


def test_of_two_at_once_one_is_paid_and_the_other_locked_out(address: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        answers = sorted(pool.map(get, [f"{address}/orders/7/pay/"] * 2))
    assert [status for status, _ in answers] == [200, 423]
    assert int(answers[1][1] or 0) >= 1
    assert get(f"{address}/orders/7/pay/")[0] == 200


def test_every_setting_is_in_the_table() -> None:
    from redlock_django.conf import DEFAULTS

    table = README[README.index("## Settings") : README.index("## What is promised")]
    missing = {key for key in DEFAULTS if f"`{key}`" not in table}
    assert missing <= {"RULES", "IDEMPOTENCY"}  # what they do is not built yet


def test_the_files_it_points_to_are_there() -> None:
    table = README[README.index("## Where is what") :]
    for name in re.findall(r"`([\w/.]+(?:\.py|/))`", table):
        places = [ROOT / name, ROOT / "redlock_django" / name, ROOT / "redlock_django/wire" / name]
        assert any(place.exists() for place in places), name
