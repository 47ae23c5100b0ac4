"""Counting permits on a majority is unsound: redis-semaphore (npm) against ours, on five masters.

Each of five clients reaches another three of the masters. Any two of them reach one in common, so
they never hold one lock both. But permits that are counted, three on each master, are given to
all five clients.
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from redlock_django.exceptions import LimitReached
from redlock_django.testing.masters import reserve_ports
from tests.wire.variants import make_backend, trust

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redlock_django.backends.redis import RedisBackend
    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.nightly]
LIMIT = 3
PROGRAM = Path(__file__).with_name("counting_semaphore.mjs")
PACKAGES = ("ioredis@6", "redis-semaphore@5")


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Return a port that no server listens on."""
    with ExitStack() as reserved:
        yield reserve_ports(1, reserved)[0]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program of the other package's clients, with what it imports."""
    if (npm := shutil.which("npm")) is None or shutil.which("node") is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("npm")
    flags = ("--silent", "--no-audit", "--no-fund", "--ignore-scripts")
    done = subprocess.run(
        [npm, "install", *flags, *PACKAGES], cwd=folder, capture_output=True, timeout=240
    )
    if done.returncode:
        pytest.skip(f"npm cannot install: {done.stderr.decode()[-200:]}")
    return Path(shutil.copy(PROGRAM, folder))


def test_counted_permits_have_five_holders_and_not_three(
    program: Path, masters: list[LocalMaster], closed_port: int
) -> None:
    ports = [str(port) for port in (*(master.port for master in masters), closed_port)]
    found = subprocess.run(
        ["node", program.name, *ports],
        cwd=program.parent, capture_output=True, text=True, check=True, timeout=120,
    ).stdout  # fmt: skip
    assert int(found) == 5 > LIMIT


def reaching(number: int, masters: list[LocalMaster], closed_port: int) -> RedisBackend:
    """Return the store of a client that reaches three of the masters."""
    reached = {(number + step) % len(masters) for step in range(3)}
    urls = [
        master.url if index in reached else f"redis://127.0.0.1:{closed_port}/{index}"
        for index, master in enumerate(masters)
    ]
    return make_backend(urls, members="scenario", max_ttl=60.0, master_timeout=5.0)


def test_ours_have_three_holders(masters: list[LocalMaster], closed_port: int) -> None:
    held = []
    with ExitStack() as stack:
        for number in range(len(masters)):
            store = stack.enter_context(closing(reaching(number, masters, closed_port)))
            for master in masters if not number else ():
                trust(master, store.deployment)
            store.release(store.acquire(("warm-up",), 20.0, 60.0, "{}"))
            try:
                held.append(store.acquire(("export",), 60.0, 0.0, "{}", LIMIT).slot)
            except LimitReached:
                continue
    assert sorted(held) == [0, 1, 2]
