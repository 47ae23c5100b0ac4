"""Requests per second of a bare view, of locked views, and of one under redis-py's Lock.

All run in turns in one server process: called as WSGI in a loop (only Django), and served to eight
connections by gunicorn (one process, eight threads) and, as async views, by uvicorn (one process).
What LockMiddleware costs is taken from the processor time of that process: on a busy machine, a
site beside itself makes 0.97 to 1.08 times the requests per second, and takes 1.00 times the
processor time (2026-11-23).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from benchmarks import site
from benchmarks.harness.results import Results, Where
from benchmarks.harness.workload import Column, Reason, Table, Target, Workload
from benchmarks.worker.bench import Bench
from benchmarks.worker.contender import Contender
from redlock_django.testing.processes import ProcessGroup
from tests.ports import free_port

if TYPE_CHECKING:
    from benchmarks.harness.plan import Plan

CROWD = 8
"""The number of concurrent connections and of server threads."""


def orders(count: int) -> list[list[int]]:
    """Return orders of an even number of views.

    In these, each view is at each place once, and follows each other one once.
    """
    first = [(place + 1) // 2 if place % 2 else -place // 2 % count for place in range(count)]
    return [[(view + turn) % count for view in first] for turn in range(count)]


class Called(Contender):
    """Calls the WSGI application in a loop: Django and the view, no server and no HTTP."""

    prefix = "redlock:lock:"
    crowd = 1
    kind = site.SYNC
    cpu = staticmethod(time.process_time)
    seen = staticmethod(site.counts)

    def __init__(self, masters: list[Any]) -> None:
        self._site = site.application(masters)

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


class Served(Contender):
    """Requests to gunicorn (one process, eight threads) over eight persistent connections."""

    prefix = "redlock:lock:"
    crowd = CROWD
    kind = site.SYNC
    server = (
        *("gunicorn", "--bind", "127.0.0.1:{port}", "--keep-alive", "60", "--no-control-socket"),
        *("--worker-class", "gthread", "--threads", str(CROWD), "benchmarks.site:application()"),
    )
    """The module of the server, and its arguments."""

    def __init__(self, masters: list[Any]) -> None:
        self._port = free_port()
        # Lives as long as this process; its watchdog sees to the rest.
        self._processes = ProcessGroup("redlock-site-")
        self._processes.spawn(
            [sys.executable, "-m", *(word.format(port=self._port) for word in self.server)],
            env={**os.environ, site.MASTERS: json.dumps(masters)},
            stderr=None,
        )
        self._connections = [self._connect() for _ in range(CROWD)]

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(ConnectionRefusedError):
                made = socket.create_connection(("127.0.0.1", self._port), timeout=20)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return made
            time.sleep(0.02)
        raise RuntimeError(f"{self.server[0]} did not come up")

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

    def seen(self) -> dict[str, Any]:
        """Return the counts of the intruder in the views, and the processor time of the server."""
        seen: dict[str, Any] = json.loads(self.ask(0, "/with/seen/").partition(b"\r\n\r\n")[2])
        return seen

    def cpu(self) -> float:
        """Return the processor time of the server's process in seconds."""
        return float(self.seen()["cpu"])


class AsyncServed(Served):
    """Requests to uvicorn (one process) over eight persistent connections: the async views."""

    kind = site.ASYNC
    server = (
        *("uvicorn", "--port", "{port}", "--timeout-keep-alive", "60", "--log-level", "warning"),
        *("--lifespan", "off", "--factory", "benchmarks.site:asgi_application"),
    )


async def requests(
    bench: Bench, *, seconds: float, repeats: int = 2, warm_up: float = 0.2
) -> dict[str, Any]:
    """Request every view in turn, in slices, so that all run under the same conditions.

    Gives for each view its requests per second, and the processor time of a request in its process,
    over the slices together.
    """
    client = bench.contender
    paths = {name: path.format(client.kind) for name, path in site.VIEWS.items()}
    for path in paths.values():
        press(client, path, warm_up)
    names, total = [*paths], {name: [0, 0.0, 0.0] for name in paths}
    turns = orders(len(names)) * repeats
    for order in turns:
        for name in (names[place] for place in order):
            before = client.cpu()
            one = press(client, paths[name], seconds / len(turns))
            for place, value in enumerate((*one, client.cpu() - before)):
                total[name][place] += value
    views = {
        name: {"per_s": done / took, "cpu_us": cpu / done * 1e6}
        for name, (done, took, cpu) in total.items()
    }
    return {"views": views, **client.seen()}


def press(client: Any, path: str, seconds: float) -> tuple[int, float]:
    """Request a view from all clients of a site; return how often, and the seconds that it took."""
    done = [0] * client.crowd
    began = time.perf_counter()

    def ask(place: int) -> None:
        while time.perf_counter() < began + seconds:
            # All clients pay different orders, so that no request waits for a lock.
            client.ask(place, f"{path}{place * 64 + done[place] % 64 + 1}/")
            done[place] += 1

    crowd = [threading.Thread(target=ask, args=(place,)) for place in range(1, client.crowd)]
    for one in crowd:
        one.start()
    ask(0)
    for one in crowd:
        one.join()
    return sum(done), time.perf_counter() - began


def by_view(job: str, plan: Plan, setting: str, case: str, name: str) -> dict[str, Any]:
    """Return the figures of each view: the worker asks several of them in turns."""
    with plan.worker(name, setting) as worker:
        worker.ask(job=job, seconds=plan.seconds * 2)
        said = worker.answer(plan.seconds * 2 * len(site.VIEWS))
    seen = {"looks": said["looks"], "overlaps": said["overlaps"]}
    return {view: {**figures, **seen} for view, figures in said["views"].items()}


def measure(plan: Plan, setting: str, case: str, name: str) -> dict[str, Any]:
    """Use five masters for locked views and the first for redis-py's Lock; setting free."""
    return by_view("views.requests", plan, setting, case, name)


BARE = ("bare", "bare, no LockMiddleware")
LOCKED, REDIS = ("@lock_resource", "a rule"), "redis-py's Lock"
SERVERS = ("gunicorn", "uvicorn")
CASES = ("called", *SERVERS)
UNTOUCHED = CASES[:2]
"""Not uvicorn: a request takes 2 ms there, and scatters by more than 2 %."""


def without(results: Results) -> str:
    """Return what LockMiddleware adds to a request in this run."""
    said = []
    for how in UNTOUCHED:
        times = [results.median(Where("views", "free", how, name), "cpu_us") for name in BARE]
        if all(times):
            said.append(f"{how} {times[0]:.1f} and {times[1]:.1f} µs")
    return f"A request with and without it took {'; '.join(said)}." if said else ""


CALL = Reason(
    "views",
    "LockMiddleware adds a call and an attribute to each request.",
    "longer rounds",
    without,
)


def beside(results: Results) -> str:
    """Return the processor time of a request in this run, for each server."""
    said = []
    for server in SERVERS:
        figures = [
            f"{name} {cpu:.0f}"
            for name in (LOCKED[0], "with lock()", REDIS)
            if (cpu := results.median(Where("views", "free", server, name), "cpu_us"))
        ]
        if figures:
            said.append(f"{server}: {', '.join(figures)}")
    return f"Processor time of the server, µs a request: {'; '.join(said)}." if said else ""


FIVE = Reason(
    "locked views",
    "The server, its client and all masters share the processors: a lock takes ten scripts on five "
    "masters, redis-py's two commands on one.",
    "processors of their own for the masters",
    beside,
)

BY_OURSELVES = "server's CPU by no LockMiddleware"


def untouched(how: str) -> Target:
    """Return the target of a view without locks."""
    times = Where("views", "free", how, BARE[0]).by(BARE[1], "cpu_us")
    work = f"a view without a lock, {how}"
    return Target(work, BY_OURSELVES, 1.02, times, reason=CALL)


def rate(server: str, view: str) -> Target:
    """Return the target of the requests per second of a locked view."""
    ratio = Where("views", "free", server, view).by(REDIS, "per_s")
    return Target(
        f"a locked view, {server}: requests/s", f"{view} by {REDIS}", 0.97, ratio, most=False,
        reason=FIVE,
    )  # fmt: skip


WORKLOAD = Workload(
    "views",
    settings=("free",),
    cases=lambda setting: [(case, (f"site {case}",)) for case in CASES],
    measure=measure,
    parts="contender",
    tables=[
        Table(
            "Views",
            [
                Column("called in a loop: CPU µs", "free", "called", "cpu_us"),
                *(
                    column
                    for server in SERVERS
                    for column in (
                        Column(f"{server}: requests/s", "free", server, "per_s"),
                        Column("× redis-py's Lock", "free", server, "per_s", by=REDIS),
                        Column("server's CPU µs", "free", server, "cpu_us"),
                    )
                ),
            ],
        )
    ],
    targets=[
        *map(untouched, UNTOUCHED),
        *(rate(server, view) for server in SERVERS for view in LOCKED),
    ],
)
