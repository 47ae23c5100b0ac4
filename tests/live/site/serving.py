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
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redlock_django.testing.processes import ProcessGroup
from tests.live.left_over import locked
from tests.operate.planted import on
from tests.ports import free_port
from tests.programs import ROOT

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster

SETTINGS = "tests.live.site.settings"


def commands(port: int, workers: int) -> dict[str, list[str]]:
    """Return the command line of each server, by its name."""
    python = [sys.executable, "-m"]
    # Loaded once; every worker is forked, also a replacement for a killed one.
    gunicorn = [
        *(*python, "gunicorn", "--bind", f"127.0.0.1:{port}", "--workers", str(workers)),
        *("--preload", "--no-control-socket"),
    ]
    asgi = ["--worker-class", "tests.live.site.serving.AsgiWorker"]
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


class Tables:
    """A database of the site: its entry of DATABASES, and what was committed."""

    def __init__(self, entry: dict[str, Any], blocker: Any) -> None:
        from django.contrib.auth.models import Group, Permission, User
        from django.contrib.contenttypes.models import ContentType
        from django.contrib.sessions.models import Session
        from django.db import connections
        from django.db.utils import load_backend

        from redlock_django.models import IdempotencyRecord
        from tests.live.site.models import Counter, Payment

        self.entry = entry
        whole = connections.configure_settings({"default": dict(entry)})["default"]
        # An alias would be a database that the tests of this process create and empty.
        self._connection = load_backend(entry["ENGINE"]).DatabaseWrapper(whole, "site")
        self._connection.inc_thread_sharing()
        self._blocker, self._mutex = blocker, threading.Lock()
        connections["site"] = self._connection  # for the editor only
        with blocker.unblock(), self._connection.schema_editor() as editor:
            for shipped in (ContentType, Permission, Group, User, Session, IdempotencyRecord):
                editor.create_model(shipped)
            for own in (Counter, Payment):
                editor.create_model(own)
        del connections["site"]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Send any request, and return its rows."""
        with self._mutex, self._blocker.unblock(), self._connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall()) if cursor.description else []

    def payments(self, order: int) -> int:
        """Return the number of payments for an order."""
        return int(self.rows(f'SELECT count(*) FROM payment WHERE "order" = {order}')[0][0])

    def counter(self) -> int:
        """Create a counter, and its twin with the negated key; return the key."""
        ((pk,),) = self.rows("INSERT INTO counter (value) VALUES (0) RETURNING id")
        self.rows(f"INSERT INTO counter VALUES ({-pk}, 0)")
        return int(pk)

    def value(self, pk: int) -> int:
        """Return the committed value of a counter."""
        ((value,),) = self.rows(f"SELECT value FROM counter WHERE id = {pk}")
        return int(value)

    def set(self, pk: int, value: int) -> None:
        """Change the value of a counter."""
        self.rows(f"UPDATE counter SET value = {value} WHERE id = {pk}")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@dataclass(frozen=True)
class Answer:
    """A response; `replayed` is None if it has no such header."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of a refusal, empty for anything else."""
        if self.headers["Content-Type"] != "application/problem+json":
            return ""
        return str(self.json["code"])

    @property
    def replayed(self) -> bool | None:
        """The value of `Idempotent-Replayed`."""
        return {"true": True, "false": False, None: None}[self.headers["Idempotent-Replayed"]]


@dataclass
class Site:
    """A running server with its database, its masters, and gates at which its views wait."""

    server: str
    port: int
    process: subprocess.Popen[bytes]
    log_path: Path
    tables: Tables
    masters: list[LocalMaster]
    gates: Path

    @property
    def log(self) -> str:
        """Everything that the server has written."""
        return self.log_path.read_text()

    def stop(self) -> None:
        """Stop the server as an operator does; at the end of the block it is killed."""
        self.process.terminate()
        self.process.wait(60)

    @contextlib.contextmanager
    def connected(self) -> Iterator[http.client.HTTPConnection]:
        """A connection to the site, which is closed at the end of the block."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        with contextlib.closing(connection):
            yield connection

    def request(
        self, method: str, path: str, body: Any = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request over a new connection."""
        with self.connected() as connection:
            connection.request(method, path, body, {"Connection": "close", **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())

    def post(self, path: str) -> int:
        """Send one request; return its status."""
        return self.request("POST", path).status

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

    def gate(self, order: int) -> tuple[Path, Path]:
        """Return the file that shows that a view waits, and the file that makes it continue."""
        return self.gates / f"{order}.entered", self.gates / f"{order}.open"

    def holders(self, pk: int) -> int:
        """Return the number of masters on which a counter is locked."""
        return on(self.masters, f"counter:{pk}")

    def locks(self, prefix: str) -> set[str]:
        """Return the names of the locks that are on at least one master."""
        return set(locked(self.masters, prefix))


@contextlib.contextmanager
def serving(
    name: str,
    *,
    tables: Tables,
    masters: list[LocalMaster],
    gates: Path,
    workers: int = 2,
    **env: str,
) -> Iterator[Site]:
    """Run the site until the block ends: "wsgi-atomic", "asgi-plain", "runserver-plain" ..."""
    server, _, transactions = name.partition("-")
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
                    "DJANGO_SETTINGS_MODULE": SETTINGS,
                    "SITE_DATABASE": json.dumps(tables.entry),
                    "SITE_MASTERS": ",".join(master.url for master in masters),
                    "SITE_SERVER": server,
                    "SITE_ATOMIC": "1" if transactions == "atomic" else "0",
                    "SITE_GATES": str(gates),
                    **env,
                },
            )
        site = Site(server, port, process, log_path, tables, masters, gates)
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
