"""Green threads: gevent works as threads do; eventlet is refused with an error that says why."""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django import lock
from redlock_django.exceptions import InvalidRedlock
from redlock_django.testing.processes import ProcessGroup
from tests.contract.stores import MEMORY

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.live


def late_patch(store_settings: dict[str, Any], *options: str) -> str:
    """Return what processes print that gevent has patched late."""
    pytest.importorskip("gevent", reason="gevent is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.live.late_patch", *options, json.dumps(store_settings)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_gevent_patches_after_all_imports_and_in_a_child_of_a_process_that_used_locks(
    store_settings: dict[str, Any],
) -> None:
    assert late_patch(store_settings) == "done\n" * 2


@pytest.mark.slow
def test_a_process_that_gevent_patches_after_it_used_locks_is_refused() -> None:
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    redlock = {"default": {"BACKEND": MEMORY}}
    answer = late_patch({"REDLOCK": redlock, "DATABASES": {"default": database}}, "--used")
    assert answer.startswith("This process had used locks before its threads were replaced by")
    assert "Call gevent.monkey.patch_all() first" in answer


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="", marks=pytest.mark.nightly),
        pytest.param(("--preload",), id="preloaded"),
    ],
)
def test_requests_of_a_gevent_worker_wait_for_one_lock(
    masters: list[LocalMaster], options: tuple[str, ...]
) -> None:
    """More of them than MAX_WAITERS, which counts threads; then SIGTERM ends the worker."""
    pytest.importorskip("gevent", reason="gevent is not installed")
    pytest.importorskip("gunicorn", reason="gunicorn is not installed")
    with ProcessGroup("redlock-green-") as processes, ThreadPoolExecutor(30) as clients:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        log = processes.directory / "log"
        argv = [sys.executable, "-m", "gunicorn", "--no-control-socket", "-k", "gevent", *options]
        argv += ["--bind", f"fd://{listener.fileno()}", "--timeout", "0"]
        argv += ["--graceful-timeout", "600", "--config"]
        argv += ["python:tests.live.green_server", "tests.live.green_site"]
        with log.open("wb") as stderr:
            server = processes.spawn(
                argv,
                cwd=ROOT,
                stdout=stderr,
                stderr=stderr,
                pass_fds=[listener.fileno()],
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "GREEN_MASTERS": ",".join(master.url for master in masters[:3]),
                },
            )

        def pay(_: int) -> tuple[int, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            with closing(connection) as client:
                client.request("POST", "/pay/1/")
                response = client.getresponse()
                return response.status, response.read()

        assert set(clients.map(pay, range(30))) == {(200, b"1")}, log.read_text()
        server.terminate()
        assert server.wait(timeout=60) == 0, log.read_text()
        listener.close()


@pytest.mark.parametrize(
    "section",
    [
        {"MASTERS": ["redis://127.0.0.1:1"]},
        {"BACKEND": "redlock_django.backends.database.DatabaseBackend"},
        {
            "BACKEND": "redlock_django.backends.zookeeper.ZooKeeperBackend",
            "HOSTS": ["127.0.0.1:1"],
        },
    ],
    ids=["redis", "database", "zookeeper"],
)
def test_a_process_without_poll_is_refused(
    section: dict[str, Any], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because eventlet.monkey_patch() removes it."""
    settings.REDLOCK = {"default": section}
    monkeypatch.delattr(select, "poll")
    with pytest.raises(InvalidRedlock, match=r"eventlet\.monkey_patch.*gevent, threads or asyncio"):
        lock("order:1").acquire()
