"""Locks in ZooKeeper beside kazoo's own Lock: `python -m benchmarks zookeeper`.

All contenders acquire and release one lock, in turn. kazoo's Lock is used with one object for all
pairs, which looks for its path only once, and with a new object for each. Never compare absolute
figures of two runs. With `--servers 3`, a majority agrees on every write.
"""

from __future__ import annotations

import argparse

from benchmarks.programs import HOLDER, NAME, configure, ours, show_pairs, show_wakes


def main() -> None:
    """Start ZooKeeper, measure, and print two tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks zookeeper")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--wakes", type=int, default=100)
    parser.add_argument("--servers", type=int, default=1)
    given = parser.parse_args()
    from tests.zookeeper import local_zookeeper

    with local_zookeeper(given.servers) as servers:
        measure([server.host for server in servers], given)


def measure(hosts: list[str], given: argparse.Namespace) -> None:
    """Measure on these servers."""
    from kazoo.client import KazooClient

    backend = "redlock_django.backends.zookeeper.ZooKeeperBackend"
    configure(REDLOCK={"default": {"BACKEND": backend, "HOSTS": hosts}})
    from redlock_django import locks

    store, client = locks["default"].backend, KazooClient(hosts=",".join(hosts))
    store.declare_new()
    client.start()
    kept = client.Lock(f"/kazoo/{NAME}")

    def kazoo_kept() -> None:
        with kept:
            pass

    def kazoo_new() -> None:
        with client.Lock(f"/kazoo/{NAME}"):
            pass

    def permit() -> None:
        store.release(store.acquire((f"{NAME}:permits",), 30, 0, HOLDER, 3))

    contenders = {
        "kazoo's Lock": kazoo_kept,
        "kazoo's Lock, new": kazoo_new,
        **ours(store),
        "a slot of 3": permit,
    }
    try:
        show_pairs("Pairs", contenders, given.rounds, given.pairs)
        show_wakes(store, given.wakes)
    finally:
        locks.close()
        client.stop()
        client.close()
