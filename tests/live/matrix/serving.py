"""Two server processes for all sites: gunicorn's threads, and uvicorn for async views."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from redlock_django.testing.masters import LocalMaster
from redlock_django.testing.processes import ProcessGroup
from tests.live.matrix.cells import Kind, kinds

ROOT = Path(__file__).resolve().parents[3]
THREADS = 6
BOOT = 300.0  # seconds; a server that listens already answers when it has imported all sites
SERVERS = {
    "wsgi": ["--threads", str(THREADS)],
    "asgi": ["--worker-class", "tests.live.increments.serving.AsgiWorker"],
}


class Answer(NamedTuple):
    """A response."""

    status: int
    text: str


class Site:
    """A running site, and clients that keep their connections to it."""

    def __init__(self, port: int, log: Path) -> None:
        self._port = port
        self._log = log
        self._own = threading.local()
        self._connections: list[http.client.HTTPConnection] = []
        self._pool = ThreadPoolExecutor(THREADS)

    @property
    def log(self) -> str:
        """Everything that its server has written."""
        return self._log.read_text()

    def press(self, path: str, keys: list[str]) -> set[Answer]:
        """Send a request for each key, several at the same time; return all different answers."""
        return set(self._pool.map(lambda key: self._post(path, key), keys))

    def _post(self, path: str, key: str) -> Answer:
        if not hasattr(self._own, "connection"):
            self._own.connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=BOOT)
            self._connections.append(self._own.connection)
        self._own.connection.request("POST", path, headers={"Idempotency-Key": key})
        response = self._own.connection.getresponse()
        return Answer(response.status, response.read().decode())

    def close(self) -> None:
        """End the clients."""
        self._pool.shutdown()
        for connection in self._connections:
            connection.close()


@contextlib.contextmanager
def serving(
    databases: dict[str, dict[str, Any]], masters: list[LocalMaster]
) -> Iterator[dict[tuple[str, Kind], Site]]:
    """Run all sites on both servers until the block ends."""
    with ProcessGroup("redlock-matrix-") as processes, contextlib.ExitStack() as stack:
        sites = {}
        for server, options in SERVERS.items():
            # A client that connects before its server has started waits.
            listeners = [socket.create_server(("127.0.0.1", 0)) for _ in kinds(databases)]
            numbers = [listener.fileno() for listener in listeners]
            log_path = processes.directory / server
            argv = [sys.executable, "-m", "gunicorn", "--no-control-socket", *options]
            argv += ["--config", "python:tests.live.matrix.server"]
            for number in numbers:
                argv += ["--bind", f"fd://{number}"]
            with log_path.open("wb") as log:
                processes.spawn(
                    [*argv, f"tests.live.matrix.server:{server}"],
                    cwd=ROOT,
                    stdout=log,
                    stderr=log,
                    pass_fds=numbers,
                    env={
                        **os.environ,
                        "PYTHONPATH": str(ROOT),
                        "DJANGO_SETTINGS_MODULE": "tests.live.matrix.settings",
                        "MATRIX_DATABASES": json.dumps(databases),
                        "MATRIX_MASTERS": ",".join(master.url for master in masters),
                    },
                )
            for kind, listener in zip(kinds(databases), listeners, strict=True):
                site = Site(listener.getsockname()[1], log_path)
                stack.callback(site.close)
                sites[server, kind] = site
                listener.close()
        yield sites
