"""Locks in ZooKeeper beside kazoo's own Lock: `python -m benchmarks.zookeeper`.

All contenders acquire and release one lock, in turn: in each round every contender does the same
number of pairs. kazoo's Lock is used with one object for all pairs, which looks for its path only
once, and with a new object for each. A ratio is taken within a round, of medians; the median over
the rounds counts. Never compare absolute figures of two runs. With `--servers 3`, a majority
agrees on every write.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from benchmarks.database import HOLDER, NAME, report_pairs, report_wakes


def main() -> None:
    """Start ZooKeeper, measure, and print two tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zookeeper")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--wakes", type=int, default=100)
    parser.add_argument("--servers", type=int, default=1)
    given = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    os.environ["SHOP_DATABASE"] = ":memory:"
    from tests.zookeeper import local_zookeeper

    with local_zookeeper(given.servers) as servers:
        _measure([server.host for server in servers], given)


def _measure(hosts: list[str], given: argparse.Namespace) -> None:
    import django
    from django.conf import settings
    from kazoo.client import KazooClient

    settings.REDLOCK = {
        "default": {"BACKEND": "redlock_django.backends.zookeeper.ZooKeeperBackend", "HOSTS": hosts}
    }
    django.setup()
    from redlock_django import lock
    from redlock_django.locking.services import locks

    backend, client = locks["default"].backend, KazooClient(hosts=",".join(hosts))
    backend.declare_new()
    client.start()
    kept = client.Lock(f"/kazoo/{NAME}")

    def kazoo_kept() -> None:
        with kept:
            pass

    def kazoo_new() -> None:
        with client.Lock(f"/kazoo/{NAME}"):
            pass

    def store() -> None:
        backend.release(backend.acquire((NAME,), 30, 0, HOLDER))

    def whole() -> None:
        with lock(NAME):
            pass

    contenders: dict[str, Callable[[], object]] = {
        "kazoo's Lock": kazoo_kept,
        "kazoo's Lock, new": kazoo_new,
        "ZooKeeperBackend": store,
        "with lock()": whole,
    }
    try:
        report_pairs(contenders, given.rounds, given.pairs)
        report_wakes(given.wakes)
    finally:
        locks.close()
        client.stop()
        client.close()


if __name__ == "__main__":
    main()
