"""Who takes part: the project, the floors, the peers; and where each of them lives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Contender:
    """One of those that are measured.

    `home` is where its five words are (`worker/contender.py`); `environment` the one of
    `environments.py` that holds its library; `patience` whether it can be told to wait for
    at most so long for a master.
    """

    name: str
    about: str
    home: str
    environment: Literal["project", "python", "python39", "node"] = "python"
    colour: Literal["sync", "async"] = "sync"
    patience: bool = False

    @property
    def ours(self) -> bool:
        """Whether it is the project itself, which is in every ratio."""
        return self.home.startswith(("benchmarks.peers.ours", "benchmarks.site"))


_EVERYBODY = (
    Contender("ours", "redlock_django", "benchmarks.peers.ours:Threads", "project"),
    Contender(
        "ours async",
        "redlock_django, coroutines",
        "benchmarks.peers.ours:Tasks",
        "project",
        "async",
    ),
    Contender(
        "floor",
        "raw blocking sockets, the bytes that redlock_django sends, N sends and then N reads",
        "benchmarks.floors.blocking:SameBytes",
        "project",
    ),
    Contender(
        "floor SET",
        "the same with SET NX PX and compare-and-delete: no fence, index, holder or trust",
        "benchmarks.floors.blocking:PlainSet",
        "project",
    ),
    Contender(
        "floor async",
        "bare asyncio, the bytes that redlock_django sends, the writes of a loop's turn joined",
        "benchmarks.floors.joined:SameBytes",
        "project",
        "async",
    ),
    Contender(
        "redlock-py",
        "Redlock, one master after the other",
        "benchmarks.peers.redlock_py:Threads",
        patience=True,
    ),
    Contender(
        "pottery",
        "Redlock, a pool of threads made for each call",
        "benchmarks.peers.pottery:Threads",
        patience=True,
    ),
    Contender(
        "pottery async",
        "Redlock on redis-py's asyncio",
        "benchmarks.peers.pottery:Tasks",
        colour="async",
        patience=True,
    ),
    Contender(
        "aioredlock",
        "Redlock on aioredis 1, Python 3.9, without a timeout for a command",
        "benchmarks.peers.aioredlock:Tasks",
        "python39",
        "async",
    ),
    Contender(
        "node-redlock",
        "Redlock 5 on ioredis, Node.js",
        "benchmarks/peers/node_redlock.mjs",
        "node",
        "async",
        patience=True,
    ),
    Contender("redis-py", "its Lock, on ONE master", "benchmarks.peers.redis_py:Threads"),
    Contender(
        "redis-py async",
        "its asyncio Lock, on ONE master",
        "benchmarks.peers.redis_py:Tasks",
        colour="async",
    ),
    Contender(
        "python-redis-lock",
        "SET NX and BLPOP, on ONE master",
        "benchmarks.peers.python_redis_lock:Threads",
    ),
    Contender("site called", "views, called in a loop", "benchmarks.site.crowds:Called", "project"),
    Contender("site served", "views, behind gunicorn", "benchmarks.site.crowds:Served", "project"),
    Contender(
        "payments",
        "views with a row in SQLite each, called in a loop",
        "benchmarks.site.payments:Payments",
        "project",
    ),
)

CONTENDERS = {contender.name: contender for contender in _EVERYBODY}
