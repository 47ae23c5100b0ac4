"""kazoo's Lock, with one object for all locks of a name, which looks for its path only once."""

from __future__ import annotations

import threading
from typing import Any

from benchmarks.contenders import Contender, Place


class Kazoo(Contender):
    """The recipe that kazoo brings."""

    def __init__(self, place: Place) -> None:
        from kazoo.client import KazooClient

        self._client = KazooClient(hosts=place.hosts)
        self._client.start()
        self._mine = threading.local()

    def _made(self, resource: str) -> Any:
        made = self._mine.__dict__.setdefault("locks", {})
        if resource not in made:
            made[resource] = self._client.Lock(f"/kazoo/{resource}")
        return made[resource]

    def acquire(self, resource: str) -> Any:
        held = self._made(resource)
        return held if held.acquire(blocking=False) else None

    def wait(self, resource: str) -> Any:
        held = self._made(resource)
        held.acquire()
        return held

    def release(self, held: Any) -> None:
        held.release()
