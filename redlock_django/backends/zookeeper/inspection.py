"""Held locks, forced release and health of the ZooKeeper store, by reading the tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from redlock_django.backends.inspection.contract import Inspection
from redlock_django.backends.inspection.results import Listing, ReleaseOutcome, ServerHealth
from redlock_django.backends.zookeeper.client import (
    command,
    explained,
    explained_connecting,
    new_client,
    stop,
    with_failure,
)
from redlock_django.backends.zookeeper.paths import (
    MIN_HOLD,
    Tree,
    in_order,
    is_turns,
    resource_of,
    seconds_left,
    trusted_in,
    untrusted,
    value_of,
)
from redlock_django.backends.zookeeper.settings import ZooKeeperSettings
from redlock_django.engine.inspection.health import Health
from redlock_django.engine.inspection.holders import Holding
from redlock_django.engine.protocol.slots import name_of
from redlock_django.wire.clock import clock, wall_ns

_MANY = 500  # requests that are sent before their answers are read
_VERSION = re.compile(r"version: (\d[\w.]*)")
_MODE = re.compile(r"^Mode: (\w+)", re.MULTILINE)


class ZooKeeperInspection(Inspection):
    """Asks the servers about locks, in a session that ends with it."""

    def __init__(self, using: str, settings: ZooKeeperSettings) -> None:
        super().__init__(using, [settings.ensemble])
        self._settings = settings
        self._tree = Tree(settings.root)
        self._client: KazooClient | None = None

    def __exit__(self, *error: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            stop(client)

    def listing(self) -> Listing:
        (queues,) = self._ask([lambda client: client.get_children_async(self._tree.locks)])
        names = [name for name in map(resource_of, queues or ()) if not is_turns(name)]
        return Listing(names[: self.MAX_LISTED], len(names) > self.MAX_LISTED)

    def holdings(self, resources: Sequence[str]) -> list[Holding]:
        held = self._held(resources)
        turns = list(dict.fromkeys(self._tree.turns(name_of(one.resource)) for one in held))
        found = self._ask([_children(queue) for queue in turns])
        waiting = {
            queue: len(in_order(names or ())) for queue, names in zip(turns, found, strict=True)
        }
        return [
            replace(one, waiters=one.waiters + waiting[self._tree.turns(name_of(one.resource))])
            for one in held
        ]

    def _held(self, resources: Sequence[str]) -> list[Holding]:
        """Return what is known of held resources, without the waiters for any slot of a name."""
        names = list(dict.fromkeys(resources))
        queues = [self._tree.queue(name) for name in names]
        children = self._ask([_children(queue) for queue in queues])
        waiting = [in_order(found or ()) for found in children]
        held = [
            (name, f"{queue}/{nodes[0].name}", len(nodes) - 1)
            for name, queue, nodes in zip(names, queues, waiting, strict=True)
            if nodes
        ]
        found = self._ask([_data(path) for _, path, _ in held])
        now = wall_ns() / 1e9
        holdings = []
        for (name, path, waiters), answer in zip(held, found, strict=True):
            if answer is not None:
                left = seconds_left(answer, now)
                if left or MIN_HOLD not in path:
                    holdings.append(self.holding(name, value_of(answer[0]), left, waiters))
        return holdings

    def release(
        self, resource: str, values: Sequence[bytes]
    ) -> tuple[ReleaseOutcome, Mapping[str, str]]:
        queue = self._tree.queue(resource)
        (children,) = self._ask([_children(queue)])
        tokens = {value.split(b" ", 1)[0].decode() for value in values}
        # Only the first: a token is in one node, and others wait.
        held = [f"{queue}/{node.name}" for node in in_order(children or ()) if node.token in tokens]
        return self._freed(any(self._ask([_deletion(path) for path in held])))

    def health(self) -> list[ServerHealth]:
        listed = len(self._held(self.listing().names))
        held = None if self._silent else listed
        left = self._trusted_in()
        return [self._server_health(host, held, left) for host in self._settings.hosts]

    def _trusted_in(self) -> float:
        """Return the seconds for which no lock is granted, because locks may be forgotten."""
        locks, base = self._ask(
            [
                lambda client: client.exists_async(self._tree.locks),
                lambda client: client.get_async(self._tree.fences),
            ]
        )
        if self._silent or base is not None:
            return 0.0
        if locks is None:  # the time begins with the first lock
            return self._settings.max_ttl
        return max(0.0, trusted_in(wall_ns() / 1e9, locks, self._settings.max_ttl))

    def _server_health(self, host: str, held: int | None, left: float) -> ServerHealth:
        asked = clock()
        try:
            answer = command(self._settings, host, b"srvr")
        except OSError as error:
            return ServerHealth.of(host, None, explained_connecting(error))
        took = clock() - asked
        health = Health(server="ZooKeeper", latency=took, persistent=True, held=held)
        mode, version = _MODE.search(answer), _VERSION.search(answer)
        if mode is not None:
            shown = f"{version[1] if version else ''} {mode[1]}".strip()
            health = replace(health, version=shown, ready_in=left)
        elif "not in the whitelist" not in answer:  # such a server answers, but not this
            return ServerHealth.of(host, None, "does not serve: it is in no majority")
        return ServerHealth.of(host, health, f"is {untrusted(left)}" if left else "")

    # Requests.

    def _ask(self, requests: Sequence[Callable[[KazooClient], Any]]) -> list[Any]:
        """Return the answer to each request, None where a node does not exist or nothing answers.

        Servers that failed once are not asked again.
        """
        answers: list[Any] = []
        for start in range(0, len(requests), _MANY):
            answers += self._ask_together(requests[start : start + _MANY])
        return answers

    def _ask_together(self, requests: Sequence[Callable[[KazooClient], Any]]) -> list[Any]:
        answers: list[Any] = [None] * len(requests)
        if self._silent or not requests:
            return answers
        try:
            client = self._connected()
            pending = [request(client) for request in requests]
            for index, result in enumerate(pending):
                with suppress(NoNodeError):
                    answers[index] = result.get(timeout=self._settings.zookeeper_timeout)
        except (KazooException, KazooTimeoutError) as error:
            self._silent[self.servers[0]] = with_failure(explained(error), self._client)
        return answers

    def _connected(self) -> KazooClient:
        if self._client is None:
            self._client = new_client(self._settings)
            self._client.start(timeout=self._settings.zookeeper_timeout)
        return self._client


def _children(queue: str) -> Callable[[KazooClient], Any]:
    return lambda client: client.get_children_async(queue)


def _data(path: str) -> Callable[[KazooClient], Any]:
    return lambda client: client.get_async(path)


def _deletion(path: str) -> Callable[[KazooClient], Any]:
    return lambda client: client.delete_async(path)
