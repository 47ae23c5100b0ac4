"""A client in JavaScript, written from the wire page, shares locks and fences with this package."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from redlock_django import ResourceLocked, lock
from redlock_django.testing import real_masters
from redlock_django.testing.masters import LocalMaster

HERE = Path(__file__).parent
LUA = HERE.parents[1] / "redlock_django/engine/protocol/lua"
TIMES = 100  # that each client adds 1
REDIS = "redis@5.8.0"  # of npm


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client beside the library that it needs."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("node")
    subprocess.run(["npm", "install", "--silent", "--prefix", folder, REDIS], check=True)
    return Path(shutil.copy(HERE / "client.mjs", folder))


def add(key: str, file: Path) -> list[tuple[int, int]]:
    """Add 1 to a file under the lock; return the fence and the new value of each time."""
    done: list[tuple[int, int]] = []
    while len(done) < TIMES:
        try:
            with lock(key) as held:
                value = int(file.read_text()) + 1
                file.write_text(str(value))
                done.append((held.fence, value))
        except ResourceLocked:
            time.sleep(random.uniform(0.001, 0.006))
    return done


@pytest.mark.nightly
@pytest.mark.live
@pytest.mark.parametrize("stopped", [0, 2])
def test_both_exclude_each_other_and_their_fences_grow(
    masters: list[LocalMaster], client: Path, tmp_path: Path, stopped: int
) -> None:
    file = tmp_path / "counter"
    file.write_text("0")
    with real_masters(masters):
        with lock("counter"):  # every master is trusted from now on
            pass
        for master in masters[:stopped]:
            master.pause()
        config = {
            "masters": [master.url for master in masters], "prefix": "redlock-default",
            "lua": str(LUA), "key": "counter", "file": str(file), "times": TIMES,
        }  # fmt: skip
        pool = ThreadPoolExecutor(2)
        ours = [pool.submit(add, "counter", file) for _ in range(2)]
        others = [
            subprocess.Popen(
                ["node", client, json.dumps(config)], stdout=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        try:
            printed = [process.communicate(timeout=120)[0] for process in others]
        finally:
            for process in others:
                process.kill()
        done = [pair for one in ours for pair in one.result(120)]
    for process in others:
        assert process.returncode == 0
    lines = [json.loads(line) for text in printed for line in text.splitlines()]
    done += [(line["fence"], line["value"]) for line in lines]
    assert file.read_text() == str(4 * TIMES) == str(len(done))
    in_order = sorted(done, key=lambda pair: pair[1])
    fences = [fence for fence, _ in in_order]
    assert fences == sorted(set(fences))
