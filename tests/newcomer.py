"""Play a newcomer: the README's quick start, line by line, in an empty environment.

    uv run python -m tests.newcomer --python 3.11 --python 3.14

For each Python: build the wheel, create an environment with nothing but pip, paste the commands and
the code of the README, and expect what it promises: 423 without a server, 423 with five masters, no
error of `check`, `migrate` and `check --deploy`; then remove the app as docs/how-to/upgrade.md
says. From the documents differ only the ports and, for a busy machine, `patient` and TIMEOUTS. Ends
with status 1, and what a terminal would have shown, if a promise is not kept or all of it takes
longer than five minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.pages import ROOT, Page
from tests.ports import free_port

README = Page("README.md")
IDEMPOTENCY = Page("docs/how-to/idempotency.md")
UNINSTALL = Page("docs/how-to/upgrade.md")
LONGEST = 300.0  # seconds for one Python
INHERITED = ("HOME", "LANG", "PIP_", "SSL_", "TMPDIR", "UV_", "http", "https", "no_proxy")


class Disappointed(Exception):
    """The documents promise something else than what happened."""


SECOND = "time.sleep(1)"
REFUSED = """
import threading

from redlock_django.signals import lock_refused

refused = threading.Event()
lock_refused.connect(lambda **about: refused.set(), weak=False)
"""
TIMEOUTS = 'REDLOCK["default"] |= {"MASTER_TIMEOUT": 2, "CONNECT_TIMEOUT": 20}\n'
"""The end of the settings with masters: a busy machine may exceed the defaults."""


def patient(view: str) -> str:
    """Return a view whose payment takes until another request is refused, 30 s at most.

    On a busy machine, the second of two requests at the same time may begin a second later.
    """
    assert view.count(SECOND) == 1
    return REFUSED + view.replace(SECOND, "refused.wait(30)")


class Newcomer:
    """A shell in an environment of its own, in which nothing is installed but pip."""

    def __init__(self, python: str, home: Path, wheel: Path) -> None:
        self.home = home
        subprocess.run(
            ["uv", "venv", "--quiet", "--seed", "--no-project", "--python", python, home / "env"],
            check=True,
        )
        # Only the file that pip takes for the name of the package differs from a real index.
        (home / "constraints").write_text(f"redlock-django @ {wheel.as_uri()}\n")
        self.environment = {
            **{k: v for k, v in os.environ.items() if k.startswith(INHERITED)},
            "PATH": f"{home / 'env' / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "PIP_CONSTRAINT": str(home / "constraints"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_YES": "1",  # the answer to what `pip uninstall` asks
            "PYTHONUNBUFFERED": "1",
        }
        self.environment.pop("UV_PYTHON", None)

    def paste(self, lines: str, where: str = "") -> str:
        """Paste lines into a shell, and return what it shows; every line must succeed."""
        began = time.monotonic()
        # The shell reads the lines from stdin, as from a terminal: no command may read them.
        done = subprocess.run(
            ["bash", "-e"], input=lines, cwd=self.home / where, env=self.environment, timeout=240,
            check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        first, *more = lines.strip().splitlines()
        print(f"{time.monotonic() - began:6.1f} s  {first}{' ...' if more else ''}", flush=True)
        if done.returncode:
            raise Disappointed(f"status {done.returncode} of:\n{lines}\n{done.stdout}")
        return done.stdout


def expect(kept: bool, promise: str, shown: str) -> None:
    """Raise Disappointed with what the terminal showed unless a promise was kept."""
    if not kept:
        raise Disappointed(f"{promise}:\n{shown}")


def quick_start(newcomer: Newcomer) -> None:
    """Follow the quick start from the first line to 423 with five masters."""
    web, *masters = (free_port() for _ in range(6))

    def on_free_ports(lines: str) -> str:
        for known, other in (
            ("--noreload", f"--noreload {web}"),
            ("localhost:8000", f"127.0.0.1:{web}"),
            ("range(6379, 6384)", str(masters)),
        ):
            lines = lines.replace(known, other)
        return lines

    newcomer.paste(README.shell("## Quick start"))
    site = newcomer.home / "site1" / "site1"
    default = (site / "settings.py").read_text()
    (site / "settings.py").write_text(default + README.code("In `site1/settings.py`"))
    (site / "urls.py").write_text(patient(README.code("In `site1/urls.py`")))
    twice = on_free_ports(README.shell("Send two requests at the same time"))
    one_is_refused(newcomer.paste(twice, "site1"))

    newcomer.paste("python manage.py check --fail-level WARNING", "site1")
    view = (site / "urls.py").read_text()
    (site / "urls.py").write_text(IDEMPOTENCY.code("## Try it"))
    shown = newcomer.paste(on_free_ports(IDEMPOTENCY.shell("paid.append")), "site1")
    expect(shown.count('{"paid": 7, "payments": 1}') == 2, "one payment for two requests", shown)
    (site / "urls.py").write_text(view)
    # Django reports the settings of `startproject`, since 6.1 as an error too (mail.E001); of ours
    # only SQLite is worth a word.
    shown = newcomer.paste("python manage.py check --deploy --fail-level CRITICAL", "site1")
    expect(re.findall(r"\(redlock_django\.(\w+)\)", shown) == ["W019"], "one warning", shown)

    five = on_free_ports(README.code("For five Redis masters"))
    with (site / "settings.py").open("a") as settings:
        settings.write(five + TIMEOUTS)
    start = on_free_ports(README.shell("Start such masters"))
    one_is_refused(newcomer.paste(f"{start}{twice}kill $masters; wait $masters || true\n", "site1"))
    open_ports = [port for port in (web, *masters) if is_open(port)]
    expect(not open_ports, "`kill $masters` ends the masters", str(open_ports))

    (site / "settings.py").write_text(default + README.code("In `site1/settings.py`"))
    newcomer.paste(UNINSTALL.shell("2. Remove the tables"), "site1")
    (site / "settings.py").write_text(default)
    (site / "urls.py").write_text("urlpatterns = []\n")
    newcomer.paste(UNINSTALL.shell("3. Remove `redlock_django`"), "site1")
    newcomer.paste("python manage.py check && python manage.py migrate --check", "site1")


def one_is_refused(shown: str) -> None:
    """Expect one request that pays and one that is refused."""
    statuses = re.findall(r"HTTP/1.1 (\d+)", shown)
    expect(sorted(statuses) == ["200", "423"], f"one pays, one is refused: {statuses}", shown)
    expect(shown.count('{"paid": 7}') == 1, "one payment", shown)
    expect(bool(re.search(r"Retry-After: [1-9]", shown)), "Retry-After", shown)
    expect("Not Found" not in shown, "no request that the page does not explain", shown)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return not probe.connect_ex(("127.0.0.1", port))


def main(argv: list[str] | None = None) -> int:
    """Play the newcomer with each Python, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.newcomer", description=__doc__)
    parser.add_argument("--python", action="append", help="version or path; default: this one")
    pythons = parser.parse_args(argv).python or [sys.executable]
    with tempfile.TemporaryDirectory(prefix="newcomer-") as temporary:
        built = Path(temporary) / "dist"
        subprocess.run(["uv", "build", "--quiet", "--wheel", "--out-dir", built, ROOT], check=True)
        [wheel] = built.glob("*.whl")
        for number, python in enumerate(pythons):
            print(f"{python}, {wheel.name}")
            home = Path(temporary) / str(number)
            home.mkdir()
            began = time.monotonic()
            try:
                quick_start(Newcomer(python, home, wheel))
            except Disappointed as promise:
                print(promise, file=sys.stderr)
                return 1
            took = time.monotonic() - began
            print(f"{took:6.1f} s  all")
            if took > LONGEST:
                print(f"longer than {LONGEST:.0f} s", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
