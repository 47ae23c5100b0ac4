"""Real servers for the site, as processes, and concurrent clients."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redlock_django.testing.masters import LocalMaster
from redlock_django.testing.processes import ProcessGroup
from tests.operate.planted import on
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[3]


def commands(port: int, workers: int) -> dict[str, list[str]]:
    """Return the command line of each server, by its name."""
    python = [sys.executable, "-m"]
    # Loaded once; every worker is forked, also a replacement for a killed one.
    gunicorn = [
        *(*python, "gunicorn", "--bind", f"127.0.0.1:{port}", "--workers", str(workers)),
        *("--preload", "--no-control-socket"),
    ]
    asgi = ["--worker-class", "tests.live.increments.serving.AsgiWorker"]
    return {
        "wsgi": [*gunicorn, "--threads", "4", f"{__name__}:wsgi"],
        "asgi": [*gunicorn, *asgi, f"{__name__}:asgi"],
        "runserver": [*python, "django", "runserver", "--noreload", f"127.0.0.1:{port}"],
    }


def __getattr__(name: str) -> Any:
    # Created only in the servers.
    if name == "wsgi":
        from django.core.wsgi import get_wsgi_application

        return _with_views(get_wsgi_application())
    if name == "asgi":
        from django.core.asgi import get_asgi_application

        return _with_views(get_asgi_application())
    if name == "AsgiWorker":
        from uvicorn_worker import UvicornWorker

        return type(name, (UvicornWorker,), {"CONFIG_KWARGS": {"lifespan": "off"}})
    raise AttributeError(name)


def _with_views(application: Any) -> Any:
    """Load the views before the workers are forked, not in each of them at its first request."""
    from django.db import connections
    from django.urls import get_resolver

    assert get_resolver().url_patterns
    assert connections["default"].connection is None  # its driver is loaded
    return application


@dataclass
class Site:
    """A running server; its `log` is what it has written so far."""

    server: str
    port: int
    log_path: Path
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> str:
        """Everything that the server has written."""
        return self.log_path.read_text()

    def stop(self) -> None:
        """Stop the server as an operator does; at the end of the block it is killed."""
        self.process.terminate()
        self.process.wait(60)

    def post(self, path: str, **options: Any) -> int:
        """Send one request; return its status."""
        return self.request("POST", path, **options)[0]

    def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send one request over a new connection; return its status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Connection": "close", **(headers or {})})
            response = connection.getresponse()
            return response.status, response.read()

    def press(self, path: str, times: int, clients: int = 12) -> list[int]:
        """Send so many requests from several clients at once; return their statuses."""
        with ThreadPoolExecutor(clients) as pool:
            return list(pool.map(lambda _: self.post(path), range(times)))

    @contextlib.contextmanager
    def asking(self, path: str) -> Iterator[socket.socket]:
        """Send a request; disconnect without reading the response when the block ends."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as client:
            client.sendall(
                f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n".encode()
            )
            yield client


@contextlib.contextmanager
def serving(
    server: str,
    *,
    database: dict[str, Any],
    masters: list[LocalMaster],
    atomic: bool,
    workers: int = 2,
    **env: str,
) -> Iterator[Site]:
    """Run the site on one kind of server until the block ends."""
    port = free_port()
    with ProcessGroup("redlock-site-") as processes:
        log_path = processes.directory / "log"
        with log_path.open("wb") as log:
            process = processes.spawn(
                commands(port, workers)[server],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "DJANGO_SETTINGS_MODULE": "tests.live.increments.settings",
                    "INCREMENTS_DATABASE": json.dumps(database),
                    "INCREMENTS_MASTERS": ",".join(master.url for master in masters),
                    "INCREMENTS_SERVER": server,
                    "INCREMENTS_ATOMIC": "1" if atomic else "0",
                    **env,
                },
            )
        site = Site(server, port, log_path, process)
        deadline = time.monotonic() + 90  # other servers may start at the same time
        while True:
            try:
                site.request("GET", "/")
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{server} did not start: {site.log}") from None
                time.sleep(0.05)
        yield site


def holders(masters: list[LocalMaster], pk: int) -> int:
    """Return the number of masters on which a counter is locked."""
    return on(masters, f"counter:{pk}")


class Counters:
    """The table of counters, on a connection of its own."""

    def __init__(self, database: dict[str, Any]) -> None:
        import psycopg

        self._connection = psycopg.connect(
            host=database["HOST"],
            port=database["PORT"],
            user=database["USER"],
            dbname=database["NAME"],
            autocommit=True,
        )
        self._mutex = threading.Lock()
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS counter (id bigserial PRIMARY KEY, value int NOT NULL)"
        )

    def new(self) -> int:
        """Create a counter, and its twin with the negated key; return the key."""
        pk = self._one("INSERT INTO counter (value) VALUES (0) RETURNING id")
        self._one(f"INSERT INTO counter VALUES ({-pk}, 0) RETURNING id")
        return pk

    def value(self, pk: int) -> int:
        """Return the committed value of a counter."""
        return self._one(f"SELECT value FROM counter WHERE id = {pk}")

    def set(self, pk: int, value: int) -> None:
        """Change the value of a counter."""
        self._one(f"UPDATE counter SET value = {value} WHERE id = {pk} RETURNING value")

    def _one(self, query: str) -> int:
        with self._mutex:
            row = self._connection.execute(query).fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
