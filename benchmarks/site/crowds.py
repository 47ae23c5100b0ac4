"""Clients of the site: one caller in the same process, or several over HTTP."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import sys
import threading
import time
from typing import Any

from redlock_django.testing.processes import ProcessGroup
from tests.ports import free_port

CROWD = 8
"""The number of concurrent connections and of server threads."""


class Called:
    """Calls the WSGI application in a loop: Django and the view, no server and no HTTP."""

    masters_used = None
    crowd = 1
    cpu = staticmethod(time.process_time)

    def __init__(self, masters: list[Any]) -> None:
        from benchmarks.site.views import Sites, cache_witness, configure, counts, witness

        places = [(host, port) for host, port in masters]
        configure(places)
        witness.masters(places)
        cache_witness.masters(places)
        self._site, self.seen = Sites(), counts

    def key(self, resource: str) -> str:
        return f"redlock:lock:{resource}"

    def ask(self, place: int, path: str) -> None:
        """Send one request. Raises RuntimeError for any status but 200."""
        said: list[str] = []
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": path,
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "HTTP_HOST": "127.0.0.1",
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(),
            "wsgi.errors": sys.stderr,
        }
        response = self._site(environ, lambda status, headers: said.append(status))
        b"".join(response)
        response.close()
        if said != ["200 OK"]:
            raise RuntimeError(f"{path} was answered {said}")


class Served:
    """Requests to gunicorn (one process, eight threads) over eight persistent connections."""

    masters_used = None
    crowd = CROWD

    def __init__(self, masters: list[Any]) -> None:
        self._port = free_port()
        # Lives as long as this process; its watchdog sees to the rest.
        self._processes = ProcessGroup("redlock-site-")
        gunicorn = ["-m", "gunicorn", "--bind", f"127.0.0.1:{self._port}", "--keep-alive", "60"]
        gunicorn += ["--worker-class", "gthread", "--threads", str(CROWD), "--no-control-socket"]
        self._processes.spawn(
            [sys.executable, *gunicorn, "benchmarks.site.served:application"],
            env={**os.environ, "BENCH_MASTERS": json.dumps(masters)},
            stderr=None,
        )
        self._connections = [self._connect() for _ in range(CROWD)]

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                made = socket.create_connection(("127.0.0.1", self._port), timeout=20)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return made
            if time.monotonic() > deadline:
                raise RuntimeError("gunicorn did not come up")
            time.sleep(0.02)

    def key(self, resource: str) -> str:
        return f"redlock:lock:{resource}"

    def ask(self, place: int, path: str) -> bytes:
        """Send one request over a connection. Raises RuntimeError for any status but 200."""
        connection = self._connections[place]
        connection.send(b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % path.encode())
        said = connection.recv(65536)
        while b"\r\n\r\n" not in said or not said.endswith(b"}"):
            more = connection.recv(65536)
            if not more:
                raise RuntimeError(f"{path} was cut off: {said[:80]!r}")
            said += more
        if not said.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{path} was answered {said[:80]!r}")
        return said

    def seen(self) -> dict[str, int]:
        """Return the counts of the intruder in the views."""
        seen = self._seen()
        return {"looks": seen["looks"], "overlaps": seen["overlaps"]}

    def cpu(self) -> float:
        """Return the processor time of the server's process in seconds."""
        return float(self._seen()["cpu"])

    def _seen(self) -> dict[str, Any]:
        seen: dict[str, Any] = json.loads(self.ask(0, "/with/seen/").partition(b"\r\n\r\n")[2])
        return seen


ORDERS = ((0, 1, 3, 2), (1, 2, 0, 3), (2, 3, 1, 0), (3, 0, 2, 1))
"""Orders of four views, in which each is at each place once, and follows each other one once."""


def requests(
    site: Any, intruder: object, *, seconds: float, repeats: int = 2, warm_up: float = 0.2
) -> dict[str, Any]:
    """Request every view in turn, in slices, so that all run under the same conditions.

    Gives for each view its requests per second, and the processor time of a request in its process,
    over the slices together.
    """
    from benchmarks.site.views import VIEWS

    names = list(VIEWS)
    for name in names:
        _press(site, VIEWS[name], warm_up)
    total = dict.fromkeys(names, (0, 0.0, 0.0))
    for order in ORDERS * repeats:
        for name in (names[place] for place in order):
            before = site.cpu()
            one = *_press(site, VIEWS[name], seconds / len(ORDERS) / repeats), site.cpu() - before
            total[name] = tuple(map(sum, zip(total[name], one, strict=True)))  # type: ignore[assignment]
    views = {
        name: {"per_s": done / took, "cpu_us": cpu / done * 1e6}
        for name, (done, took, cpu) in total.items()
    }
    return {"views": views, **site.seen()}


def _press(site: Any, path: str, seconds: float) -> tuple[int, float]:
    done = [0] * site.crowd
    began = time.perf_counter()

    def ask(place: int) -> None:
        while time.perf_counter() < began + seconds:
            # All clients pay different orders, so that no request waits for a lock.
            site.ask(place, f"{path}{place * 64 + done[place] % 64 + 1}/")
            done[place] += 1

    if site.crowd == 1:
        ask(0)
    else:
        crowd = [threading.Thread(target=ask, args=(place,)) for place in range(site.crowd)]
        for one in crowd:
            one.start()
        for one in crowd:
            one.join()
    return sum(done), time.perf_counter() - began
