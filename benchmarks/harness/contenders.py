"""The contenders: the project, the floors and the peers, with the environment of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Contender:
    """One library or program that is measured.

    `home` is the class with its methods (`worker/contender.py`), `environment` the one of
    `environments.py` with its library: project, python, python39 or node. `patience` is whether its
    timeout for a master can be set.
    """

    name: str
    about: str
    home: str
    environment: str = "python"
    api: str = "sync"
    patience: bool = False

    @property
    def ours(self) -> bool:
        """Return whether this is the project itself, which is part of every ratio."""
        return self.home.startswith(("benchmarks.peers.ours", "benchmarks.workloads"))


_ALL = (
    Contender("ours", "redlock_django", "benchmarks.peers.ours:Threads", "project"),
    Contender("ours async", "redlock_django, coroutines", "benchmarks.peers.ours:Tasks",
              "project", "async"),
    Contender("floor", "blocking sockets, the bytes of redlock_django: N sends, then N reads",
              "benchmarks.floors.blocking:SameBytes", "project"),
    Contender("floor SET", "the same with SET NX PX and compare-and-delete",
              "benchmarks.floors.blocking:PlainSet", "project"),
    Contender("floor async", "asyncio, the same bytes, the writes of a loop's turn joined",
              "benchmarks.floors.joined:SameBytes", "project", "async"),
    Contender("redlock-py", "Redlock, one master after the other",
              "benchmarks.peers.redlock_py:Threads", patience=True),
    Contender("pottery", "Redlock, a pool of threads made for each call",
              "benchmarks.peers.pottery:Threads", patience=True),
    Contender("pottery async", "Redlock on redis-py's asyncio", "benchmarks.peers.pottery:Tasks",
              api="async", patience=True),
    Contender("aioredlock", "Redlock on aioredis 1, Python 3.9, without a timeout for a command",
              "benchmarks.peers.aioredlock:Tasks", "python39", "async"),
    Contender("node-redlock", "Redlock 5 on ioredis, Node.js", "benchmarks/peers/node_redlock.mjs",
              "node", "async", patience=True),
    Contender("redis-py", "its Lock, on ONE master", "benchmarks.peers.redis_py:Threads"),
    Contender("redis-py async", "its asyncio Lock, on ONE master",
              "benchmarks.peers.redis_py:Tasks", api="async"),
    Contender("python-redis-lock", "SET NX and BLPOP, on ONE master",
              "benchmarks.peers.python_redis_lock:Threads"),
    Contender("site called", "views, called in a loop", "benchmarks.workloads.views:Called",
              "project"),
    Contender("site gunicorn", "views, behind gunicorn", "benchmarks.workloads.views:Served",
              "project"),
    Contender("site uvicorn", "async views, behind uvicorn",
              "benchmarks.workloads.views:AsyncServed", "project"),
    Contender("payments", "views with a row in SQLite each, called in a loop",
              "benchmarks.workloads.idempotency:Payments", "project"),
)  # fmt: skip

CONTENDERS = {contender.name: contender for contender in _ALL}
