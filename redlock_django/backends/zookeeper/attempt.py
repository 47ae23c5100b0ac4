"""One attempt to take locks in ZooKeeper: join the queue of each resource, become the first."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from redlock_django.backends.zookeeper.fences import Fences, Interrupted, Requests
from redlock_django.backends.zookeeper.paths import (
    Node,
    Tree,
    data_of,
    in_order,
    seconds_left,
)
from redlock_django.backends.zookeeper.requests import (
    RequestBatch,
    ZooKeeperProtocol,
    ZooKeeperStep,
)
from redlock_django.backends.zookeeper.session import Session
from redlock_django.backends.zookeeper.settings import ZooKeeperSettings
from redlock_django.engine.validity import Lease, valid_until


class ZooKeeperRefusal(NamedTuple):
    """Another client holds a resource, for so many seconds if it does not extend its lock."""

    resource: str
    seconds: float


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class ZooKeeperLease(Lease):
    """A lease in ZooKeeper: a node for each resource, in one session of `home`."""

    nodes: tuple[str, ...]
    generation: int

    @property
    def value(self) -> str:
        """The value of the nodes: the token, a space, and the holder."""
        return f"{self.token} {self.holder}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquisition:
    """The locks that an acquisition wants, all or none, and until when it waits for them."""

    resources: tuple[str, ...]
    ttl: float
    holder: str
    asked: float
    deadline: float


class ZooKeeperAttempt:
    """One attempt to take the locks, with a token of its own. Its steps are run by a driver."""

    def __init__(
        self,
        session: Session,
        tree: Tree,
        clock: Callable[[], float],
        settings: ZooKeeperSettings,
        wanted: Acquisition,
    ) -> None:
        self._session = session
        self._requests = Requests(session, settings.zookeeper_timeout)
        self._fences = Fences(self._requests, tree, settings.max_ttl)
        self._tree = tree
        self._clock = clock
        self._wanted = wanted
        self._token = secrets.token_hex(16)
        self._data = data_of(wanted.ttl, f"{self._token} {wanted.holder}")
        self._started = clock()
        self._waited = False
        self._nodes: dict[str, str] = {}  # by queue; "" where it may have been created

    def take(self) -> ZooKeeperProtocol[ZooKeeperLease | ZooKeeperRefusal]:
        """Take all locks, one after the other in the order of all clients: so none deadlocks.

        Raises Interrupted, or StoreUnavailable if the servers do not answer in time.
        """
        yield from self._fences.prepare()
        fences: dict[str, int] = {}
        for resource in sorted(self._wanted.resources):
            taken = yield from self._take(resource)
            if isinstance(taken, ZooKeeperRefusal):
                return taken
            fences[resource] = taken
        wanted, nodes = self._wanted, tuple(self._nodes.values())
        if self._waited:
            # The TTL begins now. The answer proves that the session survived the wait.
            self._started = self._clock()
            send = partial(set_all, nodes, self._data)
            answers = yield from self._requests.ask(send, is_write=True)
            if any(isinstance(answer, NoNodeError) for answer in answers):
                raise Interrupted
        until = valid_until(wanted.ttl, self._started)
        if self._clock() >= until:
            raise self._session.unavailable("the answers came too late")
        self._session.hold(self._token, self._started + wanted.ttl, nodes)
        return ZooKeeperLease(
            resources=wanted.resources,
            token=self._token,
            holder=wanted.holder,
            ttl=wanted.ttl,
            started=self._started,
            until=until,
            fences=tuple(fences[resource] for resource in wanted.resources),
            waited=self._started - wanted.asked if self._waited else 0.0,
            home=self._session,
            nodes=nodes,
            generation=self._requests.generation,
        )

    def undo(self) -> None:
        """Leave all queues that the attempt has joined or is about to join."""
        self._session.held.remove(self._token)
        self._session.post_delete([node for node in self._nodes.values() if node])
        for queue in [queue for queue, node in self._nodes.items() if not node]:
            listing = RequestBatch(partial(_list, queue), then=partial(self._delete_listed, queue))
            self._session.post(listing)

    def _delete_listed(self, queue: str, listing: RequestBatch) -> None:
        names = listing.results[1]
        if not isinstance(names, Exception):
            ours = [f"{queue}/{name}" for name in names if name.startswith(self._token)]
            self._session.post_delete(ours)

    # One resource.

    def _take(self, resource: str) -> ZooKeeperProtocol[int | ZooKeeperRefusal]:
        """Wait until the own node is the first; return the fence."""
        queue, session = self._tree.queue(resource), self._session
        session.use(queue)
        left = yield from self._look_first(queue)
        if left is not None:
            return ZooKeeperRefusal(resource, left)
        self._nodes[queue] = ""
        path, stat, names, base = yield from self._join(queue)
        self._nodes[queue] = path
        session.server_ahead = stat.ctime / 1000 - self._clock()
        while True:
            nodes = in_order(names)
            before = list(takewhile(lambda node: node.token != self._token, nodes))
            if len(before) == len(nodes):
                raise Interrupted  # it was deleted by force
            if not before:
                break
            left = yield from self._blocked(queue, before)
            if left is not None:
                session.contended.add(queue)
                return ZooKeeperRefusal(resource, left)
            self._waited = True
            names, base = yield from self._requests.ask(partial(_look, queue, self._tree.fences))
        session.contended.discard(queue)
        return (yield from self._fences.of_node(stat.czxid, base))

    def _look_first(self, queue: str) -> ZooKeeperProtocol[float | None]:
        """Return the TTL of the holder if the last attempt was refused, and a node is still there.

        It only reads. Clients that do not wait but try in a loop would otherwise create a node
        each time, and be refused because of each other's nodes.
        """
        if queue not in self._session.contended or self._clock() < self._wanted.deadline:
            return None
        (names,) = yield from self._requests.ask(lambda client: [client.get_children_async(queue)])
        nodes = [] if isinstance(names, NoNodeError) else in_order(names)
        return (yield from self._blocked(queue, nodes)) if nodes else None

    def _join(self, queue: str) -> ZooKeeperProtocol[tuple[str, Any, list[str], Any]]:
        """Create the node; return its path and stat, the names in the queue, and the base."""
        while True:
            created, names, base = yield from self._requests.ask(
                lambda client: [
                    client.create_async(
                        f"{queue}/{self._token}-",
                        self._data,
                        ephemeral=True,
                        sequence=True,
                        include_data=True,
                    ),
                    *_look(queue, self._tree.fences, client),
                ],
                is_write=True,
            )
            if not isinstance(created, NoNodeError):
                return (*created, names, base)
            made = yield from self._requests.ask(
                lambda client: [client.create_async(queue)], is_write=True
            )
            if isinstance(made[0], NoNodeError):
                self._session.prepared = -1  # the whole tree was removed
                yield from self._fences.prepare()

    def _blocked(self, queue: str, before: Sequence[Node]) -> ZooKeeperProtocol[float | None]:
        """Wait for the nodes before; if the deadline comes first, return the holder's TTL."""
        first, now = before[0], self._clock()
        left = self._wanted.deadline - now
        if first.is_min_hold or left <= 0:
            path = f"{queue}/{first.name}"
            (found,) = yield from self._requests.ask(lambda client: [client.get_async(path)])
            if isinstance(found, NoNodeError):
                return None
            held_for = seconds_left(found, now + self._session.server_ahead)
            if first.is_min_hold and held_for <= 0:
                yield from self._requests.ask(lambda client: [client.delete_async(path)])
                return None
            if left <= 0:
                return held_for
            if len(before) == 1:
                yield ZooKeeperStep(min(held_for + 0.001, left))
                return None
        pause = ZooKeeperStep(left)
        path = f"{queue}/{before[-1].name}"
        (exists,) = yield from self._requests.ask(
            lambda client: [client.exists_async(path, lambda event: pause.end())]
        )
        if exists is not None:
            yield pause
        return None


def _list(queue: str, client: KazooClient) -> list[Any]:
    # After a lost connection, another server may not know the created nodes yet.
    return [client.sync_async(queue), client.get_children_async(queue)]


def _look(queue: str, fences: str, client: KazooClient) -> list[Any]:
    # In this order: the base is at least as new as the list.
    return [client.get_children_async(queue), client.get_async(fences)]


def set_all(nodes: Sequence[str], data: bytes, client: KazooClient) -> list[Any]:
    """Store data in nodes."""
    return [client.set_async(node, data) for node in nodes]
