"""`manage.py demo`, run with and without --exit: all checks pass, and nothing is left over."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import weakref
from http.cookiejar import CookieJar
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

import pytest

from testproject.shop.management.commands.demo import deferred_interrupt
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.live, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


class Place:
    """The surroundings of one demo: a temporary directory, and a mark in its environment."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark = f"REDLOCK_DEMO_TEST={secrets.token_hex(8)}"

    def start(self, *args: str) -> subprocess.Popen[str]:
        name, _, value = self.mark.partition("=")
        dropped = {"REDLOCK_MASTERS", "SHOP_DATABASE", "FORCE_COLOR", "DJANGO_COLORS"}
        env = {key: val for key, val in os.environ.items() if key not in dropped}
        env |= {name: value, "TMPDIR": str(self.directory), "PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(
            [sys.executable, "-W", "error", "manage.py", "demo", *args],
            cwd=ROOT,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def processes(self) -> list[str]:
        """Return the command lines of its running processes. A zombie has no environment."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
        return found

    def assert_nothing_left(self, within: float = 0.0) -> None:
        deadline = time.monotonic() + within
        while (self.processes() or any(self.directory.iterdir())) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert self.processes() == []
        assert list(self.directory.iterdir()) == []


@pytest.fixture
def place() -> Iterator[Place]:
    # Not tmp_path: a unix socket's path must be short.
    directory = Path(tempfile.mkdtemp(prefix="demo-"))
    yield Place(directory)
    shutil.rmtree(directory, ignore_errors=True)


def read_until(demo: subprocess.Popen[str], pattern: str) -> list[str]:
    """Read the demo's lines until one matches; return what was read, and the groups."""
    assert demo.stdout is not None
    seen = ""
    for line in demo.stdout:
        seen += line
        if found := re.search(pattern, line):
            return [seen, *found.groups()]
    pytest.fail(f"the demo ended without {pattern!r}:\n{seen}")


def admin_page(url: str, user: str, password: str) -> str:
    """Log in to the admin, and return the list of held locks."""
    cookies = urllib.request.HTTPCookieProcessor(CookieJar())
    browser = urllib.request.build_opener(cookies)
    with browser.open(f"{url}login/", timeout=60) as answer:
        form = answer.read().decode()
    (token,) = re.findall('name="csrfmiddlewaretoken" value="([^"]+)"', form)
    target = f"{urlsplit(url).path}redlock_django/heldlock/"
    fields = {"username": user, "password": password, "csrfmiddlewaretoken": token, "next": target}
    with browser.open(f"{url}login/", urlencode(fields).encode(), timeout=60) as answer:
        page: str = answer.read().decode()
        return page


def test_runserver_of_the_repository_works(place: Place) -> None:
    """It answered a bare 500: no database, and DEBUG off."""
    port = free_port()
    environment = {k: v for k, v in os.environ.items() if k != "SHOP_DEBUG"}
    server = subprocess.Popen(
        [sys.executable, "manage.py", "runserver", str(port), "--noreload"],
        cwd=ROOT,
        env={**environment, "SHOP_DATABASE": str(place.directory / "shop.sqlite3")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as page:
                    assert page.status == 200
                break
            except urllib.error.HTTPError:
                raise
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        server.kill()
        server.wait()


def assert_checks_have_passed(out: str) -> None:
    assert "FAILED" not in out
    assert "Traceback" not in out
    assert re.findall(r"^[\w ]+: /\S*$", out, re.MULTILINE) == [], "Django's log is between them"
    text = " ".join(out.split())
    for promised in (
        "ok five masters started in",
        "ok 20 payments of one order at the same moment: 1 × 200, 19 × 423",
        "ok each refusal contains Retry-After",
        "ok the ledger is exact: 1 payment, the order is paid",
        "ok a double click: 200, 200, replayed",
        "ok sent again later: 200, replayed, in",
        "ok the same key for another order is refused: 422",
        "ok the form of the paid order, sent again, still gets its response: 200, replayed",
        "ok the next order is still paid: 200 in",
        "ok a payment is refused: 503 in",
        "ok the error names the three masters",
        "ok nothing was charged: 0 payments, the order is open",
        "ok the refused order is paid,",
        "new or emptied: not counted before",
        "ok it answers, but its vote does not count yet: 503 in",
        "ok with the other four running, the order is paid: 200 in",
        "ok locks left on the five masters: 0",
        "ok payments in the ledger: 6, orders paid: 6",
    ):
        assert promised in text


@pytest.mark.nightly
def test_a_demo_that_exits_after_its_checks_cleans_up(place: Place) -> None:
    with place.start("--exit") as demo:
        out, _ = demo.communicate(timeout=300)
    assert demo.returncode == 0, out
    assert_checks_have_passed(out)
    place.assert_nothing_left()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((), "SIGINT"),  # with all checks
        pytest.param(("--tour",), "SIGINT", marks=pytest.mark.nightly),
        pytest.param(("--tour",), "SIGKILL", marks=pytest.mark.nightly),
        pytest.param(("--tour",), "SIGTERM", marks=pytest.mark.nightly),
    ],
)
def test_demo_passes_its_checks_serves_until_a_signal_and_cleans_up(
    place: Place, arguments: tuple[str, ...], name: str
) -> None:
    with place.start(*arguments) as demo:
        try:
            shown, url = read_until(demo, r"The tour is at (\S+)")
            if not arguments:
                assert_checks_have_passed(shown)
            with urllib.request.urlopen(url, timeout=60) as page:
                text = page.read().decode()
            assert "/tour/pay-twice/" in text
            for asset in re.findall(r'(?:href|src)="/(static/[^"]+)"', text):
                with urllib.request.urlopen(url + asset, timeout=60) as answer:
                    assert answer.status == 200
            told = r"admin is at (\S+): user (\w+), password (\w+), times in (.+)"
            _, *admin, zone = read_until(demo, told)
            page = admin_page(*admin)
            assert "Held locks" in page
            assert 'data-admin-utc-offset="0"' in page
            assert zone == "UTC"
            demo.send_signal(getattr(signal, name))
            out, _ = demo.communicate(timeout=90)
        finally:
            demo.kill()
    assert "Traceback" not in out
    if name == "SIGINT":
        assert demo.returncode == 0, out
        assert "have been removed" in out
    place.assert_nothing_left(within=5.0)


@pytest.mark.nightly
def test_interrupted_demo_cleans_up(place: Place) -> None:
    with place.start("--exit") as demo:
        try:
            read_until(demo, "a payment is refused")
            demo.send_signal(signal.SIGINT)
            out, _ = demo.communicate(timeout=90)
        finally:
            demo.kill()
    assert demo.returncode == 130, out
    assert "Traceback" not in out
    place.assert_nothing_left(within=5.0)


def test_ctrl_c_in_a_finalizer_is_not_lost() -> None:
    with deferred_interrupt() as check_interrupt:
        check_interrupt()
        passing = threading.Event()
        weakref.finalize(passing, signal.raise_signal, signal.SIGINT)
        del passing
        with pytest.raises(KeyboardInterrupt):
            check_interrupt()


def test_a_taken_port_is_one_clear_line(place: Place) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with place.start("--exit", "--port", str(port)) as demo:
            out, _ = demo.communicate(timeout=90)
    assert demo.returncode == 1
    assert f"cannot serve on port {port}" in out
    assert "Traceback" not in out
    place.assert_nothing_left()
