"""A locked view behind gunicorn and uvicorn, beside one under redis-py's Lock."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator

from benchmarks import site
from benchmarks.targets.lab import Lab
from benchmarks.targets.results import Row, Target
from redlock_django.testing.processes import ProcessGroup
from tests.ports import free_port

CROWD = 8
"""The number of concurrent connections and of server threads."""

SERVERS = {
    "gunicorn": ("gunicorn", "--bind", "127.0.0.1:{port}", "--keep-alive", "60",
                 "--no-control-socket", "--worker-class", "gthread", "--threads", str(CROWD),
                 "benchmarks.site:application()"),
    "uvicorn": ("uvicorn", "--port", "{port}", "--timeout-keep-alive", "60", "--log-level",
                "warning", "--lifespan", "off", "--factory", "benchmarks.site:asgi_application"),
}  # fmt: skip
"""The module of each server, and its arguments: one process, eight threads or one loop."""

VIEWS = ("bare", "ours", "redis-py")
SLICES = 8
"""So many slices of each view in a round, in turns, so that all run under the same conditions."""


def measure(lab: Lab) -> None:
    """Measure a round."""
    for server in SERVERS:
        with connected(lab, server) as connections:
            for view in VIEWS:
                press(connections, view, 0.2)
            total = dict.fromkeys(VIEWS, (0, 0.0))
            for number in range(SLICES):
                shift = number % len(VIEWS)
                for view in (*VIEWS[shift:], *VIEWS[:shift]):
                    done, took = press(connections, view, lab.seconds / SLICES)
                    total[view] = (total[view][0] + done, total[view][1] + took)
        for view, (done, took) in total.items():
            figures = {"per_s": done / took, "pairs": done}
            lab.results.add(Row("views", server, view, lab.round, figures))


@contextlib.contextmanager
def connected(lab: Lab, server: str) -> Iterator[list[socket.socket]]:
    """Start a server on the masters; yield eight persistent connections to it."""
    port = free_port()
    with ProcessGroup("redlock-site-") as processes, contextlib.ExitStack() as stack:
        processes.spawn(
            [sys.executable, "-m", *(word.format(port=port) for word in SERVERS[server])],
            env={**os.environ, site.MASTERS: json.dumps(lab.store.place.masters)},
            stderr=None,
        )
        yield [stack.enter_context(connect(port)) for _ in range(CROWD)]


def connect(port: int) -> socket.socket:
    """Return a connection to a server that may still start. Raises TimeoutError."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionRefusedError):
            made = socket.create_connection(("127.0.0.1", port), timeout=30)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made
        time.sleep(0.02)
    raise TimeoutError("the server did not come up")


def ask(connection: socket.socket, path: str) -> None:
    """Send one request over a connection. Raises RuntimeError for any status but 200."""
    connection.send(b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % path.encode())
    said = connection.recv(65536)
    while b"\r\n\r\n" not in said or not said.endswith(b"}"):
        more = connection.recv(65536)
        if not more:
            raise RuntimeError(f"{path} was cut off: {said[:80]!r}")
        said += more
    if not said.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{path} was answered {said[:80]!r}")


def press(connections: list[socket.socket], view: str, seconds: float) -> tuple[int, float]:
    """Request a view from all clients; return how often, and the seconds that it took."""
    done = [0] * len(connections)
    began = time.perf_counter()

    def keep_asking(place: int) -> None:
        while time.perf_counter() < began + seconds:
            # All clients pay different orders, so that no request waits for a lock.
            ask(connections[place], f"/{view}/{place * 64 + done[place] % 64 + 1}/")
            done[place] += 1

    crowd = [
        threading.Thread(target=keep_asking, args=(place,)) for place in range(len(connections))
    ]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join()
    return sum(done), time.perf_counter() - began


FIVE = (
    "The server, its client and all masters share the processors: a lock takes ten scripts on five "
    "masters, redis-py's two commands on one. Masters with processors of their own help."
)
TARGETS = [
    Target(f"a locked view, {server}", "requests/s by redis-py's Lock", 0.97, "views", [server],
           "per_s", by="redis-py", most=False, why=FIVE)
    for server in SERVERS
]  # fmt: skip
