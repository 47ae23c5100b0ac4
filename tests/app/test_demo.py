"""`manage.py demo` as a person and as a machine run it: every line as promised, nothing left."""

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
import urllib.request
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testproject.shop.management.commands.demo import ended_between_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.live, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


class Place:
    """Where one demo runs: a temporary directory and a mark in the environment of its children."""

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
        """The command lines of what still runs; one that waits to be reaped has no environment."""
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


def read_until(demo: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Read the demo's lines until one matches."""
    assert demo.stdout is not None
    seen = []
    for line in demo.stdout:
        seen.append(line)
        if found := re.search(pattern, line):
            return found
    pytest.fail(f"the demo ended without {pattern!r}:\n{''.join(seen)}")


def test_every_line_comes_out_as_promised(place: Place) -> None:
    with place.start("--exit") as demo:
        out, _ = demo.communicate(timeout=90)
    assert demo.returncode == 0, out
    assert "FAILED" not in out
    assert "Traceback" not in out
    text = " ".join(out.split())
    for promised in (
        "ok five masters started in",
        "ok 20 payments of one order at the same moment: 1 × 200, 19 × 423",
        "ok each refusal says when to try again: Retry-After",
        "ok the ledger is exact: 1 payment, the order is paid",
        "ok a double click: 200, 200, replayed",
        "ok sent again later: 200, replayed, in",
        "ok the same key for another order is refused: 422",
        "ok the paid order's form, sent once more, is answered all the same: 200, replayed",
        "ok the next order is paid all the same: 200 in",
        "ok a payment is refused, not guessed: 503 in",
        "ok the error names the three masters",
        "ok nothing was charged: 0 payments, the order is open",
        "ok the refused order is paid,",
        "trusted in",
        "ok it answers, but its vote does not count yet: 503 in",
        "ok the other four go on, and the order is paid: 200 in",
        "ok locks left on the five masters: 0",
        "ok payments in the ledger: 6, orders paid: 6",
    ):
        assert promised in text
    place.assert_nothing_left()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_it_serves_until_it_is_ended_and_leaves_nothing(place: Place, name: str) -> None:
    with place.start() as demo:
        try:
            url = read_until(demo, r"The shop is at (\S+)")[1]
            with urllib.request.urlopen(url, timeout=10) as page:
                text = page.read().decode()
            assert "Pay twice at once" in text
            for asset in re.findall(r'(?:href|src)="/(static/[^"]+)"', text):
                with urllib.request.urlopen(url + asset, timeout=10) as answer:
                    assert answer.status == 200
            demo.send_signal(getattr(signal, name))
            out, _ = demo.communicate(timeout=15)
        finally:
            demo.kill()
    assert "Traceback" not in out
    if name == "SIGINT":
        assert demo.returncode == 0, out
        assert "are gone" in out
    place.assert_nothing_left(within=5.0)


def test_ended_in_the_middle_of_the_show_it_leaves_nothing(place: Place) -> None:
    with place.start("--exit") as demo:
        try:
            read_until(demo, "not guessed")
            demo.send_signal(signal.SIGINT)
            out, _ = demo.communicate(timeout=15)
        finally:
            demo.kill()
    assert demo.returncode == 130, out
    assert "Traceback" not in out
    place.assert_nothing_left(within=5.0)


def test_a_ctrl_c_where_python_drops_exceptions_still_ends_the_show() -> None:
    with ended_between_lines() as go_on:
        go_on()
        passing = threading.Event()
        weakref.finalize(passing, signal.raise_signal, signal.SIGINT)
        del passing
        with pytest.raises(KeyboardInterrupt):
            go_on()


def test_a_taken_port_is_one_clear_line(place: Place) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with place.start("--exit", "--port", str(port)) as demo:
            out, _ = demo.communicate(timeout=30)
    assert demo.returncode == 1
    assert f"cannot serve on port {port}" in out
    assert "Traceback" not in out
    place.assert_nothing_left()
