"""Requests per second of a bare view, a locked view, and one with django-redis's cache.lock.

All run in turns in one server process: called as WSGI in a loop (only Django), and served by
gunicorn (one process, eight threads) to eight connections. What LockMiddleware costs is taken from
the processor time of that process: on a busy machine, a site beside itself makes 0.97 to 1.08 times
the requests per second, and takes 1.00 times the processor time (2026-11-23).
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
from benchmarks.workloads.pairs import PYTHON
from redlock_django.testing.processes import ProcessGroup
from tests.ports import free_port

if TYPE_CHECKING:
    from benchmarks.harness.plan import Plan

CROWD = 8
"""The number of concurrent connections and of server threads."""

ORDERS = ((0, 1, 3, 2), (1, 2, 0, 3), (2, 3, 1, 0), (3, 0, 2, 1))
"""Orders of four views, in which each is at each place once, and follows each other one once."""


class Called(Contender):
    """Calls the WSGI application in a loop: Django and the view, no server and no HTTP."""

    prefix = "redlock:lock:"
    crowd = 1
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

    def __init__(self, masters: list[Any]) -> None:
        self._port = free_port()
        # Lives as long as this process; its watchdog sees to the rest.
        self._processes = ProcessGroup("redlock-site-")
        gunicorn = ["-m", "gunicorn", "--bind", f"127.0.0.1:{self._port}", "--keep-alive", "60"]
        gunicorn += ["--worker-class", "gthread", "--threads", str(CROWD), "--no-control-socket"]
        self._processes.spawn(
            [sys.executable, *gunicorn, "benchmarks.site:application()"],
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
        raise RuntimeError("gunicorn did not come up")

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


async def requests(
    bench: Bench, *, seconds: float, repeats: int = 2, warm_up: float = 0.2
) -> dict[str, Any]:
    """Request every view in turn, in slices, so that all run under the same conditions.

    Gives for each view its requests per second, and the processor time of a request in its process,
    over the slices together.
    """
    client, names = bench.contender, list(site.VIEWS)
    for name in names:
        press(client, site.VIEWS[name], warm_up)
    total = {name: [0, 0.0, 0.0] for name in names}
    for order in ORDERS * repeats:
        for name in (names[place] for place in order):
            before = client.cpu()
            one = press(client, site.VIEWS[name], seconds / len(ORDERS) / repeats)
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
        said = worker.answer(plan.seconds * 8)
    seen = {"looks": said["looks"], "overlaps": said["overlaps"]}
    return {view: {**figures, **seen} for view, figures in said["views"].items()}


def measure(plan: Plan, setting: str, case: str, name: str) -> dict[str, Any]:
    """Use five masters for the locked view and the first for cache.lock; setting free."""
    return by_view("views.requests", plan, setting, case, name)


BARE = ("bare", "bare, no LockMiddleware")


def without(results: Results) -> str:
    """Return what LockMiddleware adds to a request in this run."""
    said = []
    for how in ("called", "served"):
        times = [results.median(Where("views", "free", how, name), "cpu_us") for name in BARE]
        if all(times):
            said.append(f"{how} {times[0]:.1f} µs, and {times[1]:.1f} µs without it")
    return f"In this run a request took {'; '.join(said)}." if said else ""


CALL = Reason(
    "views",
    "LockMiddleware adds a call and an attribute to each request.",
    "longer rounds",
    without,
)


BY_OURSELVES = "processor time of the server by the same without LockMiddleware"
LOCKED, RATE = Where("views", "free", "served", "locked"), "a locked view, served: requests/s"
BY_CACHE = "by the same under cache.lock on one Redis"


def untouched(how: str) -> Target:
    """Return the target of a view without locks, called or served."""
    times = Where("views", "free", how, BARE[0]).by(BARE[1], "cpu_us")
    work = f"a view the middleware does not touch, {how}"
    return Target(work, BY_OURSELVES, 1.02, times, reason=CALL)


WORKLOAD = Workload(
    "views",
    settings=("free",),
    cases=lambda setting: [(case, (f"site {case}",)) for case in ("called", "served")],
    measure=measure,
    parts="contender",
    tables=[
        Table(
            "Views: requests/s and processor time of the server, all in one process",
            [
                Column("called in a loop", "free", "called", "per_s"),
                Column("× bare", "free", "called", "per_s", by="bare"),
                Column("served by gunicorn", "free", "served", "per_s"),
                Column("× bare", "free", "served", "per_s", by="bare"),
                Column("called: CPU µs", "free", "called", "cpu_us"),
                Column("served: CPU µs", "free", "served", "cpu_us"),
            ],
        )
    ],
    targets=[
        untouched("called"),
        untouched("served"),
        Target(RATE, BY_CACHE, 1, LOCKED.by("cache.lock", "per_s"), most=False, reason=PYTHON),
        Target(
            RATE, "by the bare view", 0.6, LOCKED.by("bare", "per_s"), most=False, reason=PYTHON
        ),
    ],
)
