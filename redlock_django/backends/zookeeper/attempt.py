"""One attempt to take locks in ZooKeeper: join the queue of each resource, become the first."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from redlock_django.backends.protocol_backend import Acquisition, StoreProtocol
from redlock_django.backends.zookeeper.fences import Fences, Interrupted, Requests
from redlock_django.backends.zookeeper.own_nodes import (
    OwnNodes,
    ZooKeeperRefusal,
    is_unchanged,
    look_at,
    nodes_in,
    nodes_of,
)
from redlock_django.backends.zookeeper.paths import Node, data_of, seconds_left
from redlock_django.backends.zookeeper.session import Session
from redlock_django.backends.zookeeper.slots import SlotSearch
from redlock_django.engine.validity import Lease, valid_until

_MOST_CONTENDED = 10_000  # queues that a process remembers, for one read in place of two writes


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class ZooKeeperLease(Lease):
    """A lease in ZooKeeper: a node for each resource, in one session of `home`."""

    nodes: tuple[str, ...]
    generation: int

    @property
    def value(self) -> str:
        """The value of the nodes: the token, a space, and the holder."""
        return f"{self.token} {self.holder}"


class ZooKeeperAttempt:
    """One attempt to take the locks, with a token of its own. Its steps are run by a driver."""

    is_repeatable = True
    """True if an attempt that was interrupted may be followed by another one."""

    def __init__(self, session: Session, wanted: Acquisition) -> None:
        self._session = session
        self._requests = Requests(session)
        self._fences = Fences(self._requests)
        self._tree = session.tree
        self._clock = session.clock
        self._wanted = wanted
        self._token = secrets.token_hex(16)
        self._data = data_of(wanted.ttl, f"{self._token} {wanted.holder}")
        self._nodes = OwnNodes(self._requests, self._fences, self._token, self._data)
        self._waited = False

    def take(self) -> StoreProtocol[ZooKeeperLease | ZooKeeperRefusal]:
        """Take all locks, or one slot of a name with a limit.

        Raises Interrupted, or StoreUnavailable if the servers do not answer in time.
        """
        started = self._clock()
        yield from self._fences.prepare()
        return (yield from self._take_slot() if self._wanted.limit > 1 else self._take_all(started))

    def undo(self) -> None:
        """Leave all queues that the attempt has joined or is about to join."""
        self._session.held.remove(self._token)
        self._nodes.undo()

    def _take_slot(self) -> StoreProtocol[ZooKeeperLease | ZooKeeperRefusal]:
        search = SlotSearch(self._requests, self._fences, self._nodes, self._wanted)
        taken = yield from search.take()
        if isinstance(taken, ZooKeeperRefusal):
            return taken
        return self._lease((taken.resource,), (taken.fence,), taken.started, taken.waited)

    def _take_all(self, started: float) -> StoreProtocol[ZooKeeperLease | ZooKeeperRefusal]:
        """Take the locks one after the other, in the order of all clients: so none deadlocks."""
        resources = self._wanted.resources
        fences: dict[str, int | None] = {}
        for resource in sorted(resources):
            taken = yield from self._take(resource)
            if isinstance(taken, ZooKeeperRefusal):
                return taken
            fences[self._tree.queue(resource)] = taken
        known = {queue: fence for queue, fence in fences.items() if fence is not None}
        if len(known) < len(fences):
            # The TTL begins now. The answer proves that the session survived a wait.
            started = self._clock()
            known = yield from self._nodes.rewrite()
        waited = started - self._wanted.asked if self._waited else 0.0
        in_order_asked = tuple(known[self._tree.queue(resource)] for resource in resources)
        return self._lease(resources, in_order_asked, started, waited)

    def _lease(
        self, resources: tuple[str, ...], fences: tuple[int, ...], started: float, waited: float
    ) -> ZooKeeperLease:
        """Return the lease of the own nodes, which hold the locks since `started`."""
        wanted, nodes = self._wanted, tuple(self._nodes.paths.values())
        until = valid_until(wanted.ttl, started)
        if self._clock() >= until:
            raise self._session.unavailable("the answers came too late")
        self._session.hold(self._token, started + wanted.ttl, nodes)
        return ZooKeeperLease(
            resources=resources,
            token=self._token,
            holder=wanted.holder,
            ttl=wanted.ttl,
            started=started,
            until=until,
            fences=fences,
            waited=waited,
            home=self._session,
            limit=wanted.limit,
            nodes=nodes,
            generation=self._requests.generation,
        )

    # One resource.

    def _take(self, resource: str) -> StoreProtocol[int | ZooKeeperRefusal | None]:
        """Wait until the own node is the first; return the fence, None if it must be rewritten."""
        queue, session = self._tree.queue(resource), self._session
        left = yield from self._look_first(queue)
        if left is not None:
            return ZooKeeperRefusal(resource, left)
        look = partial(look_at, queue, self._tree.fences)
        stat, (found, base) = yield from self._nodes.join(queue, look)
        session.note_servers_time(stat.ctime)
        while True:
            nodes = nodes_in(found)
            before = list(takewhile(lambda node: node.token != self._token, nodes))
            if len(before) == len(nodes):
                raise Interrupted  # it was deleted by force
            if not before:
                break
            left = yield from self._blocked(queue, before)
            if left is not None:
                if len(session.contended) >= _MOST_CONTENDED:
                    session.contended.clear()
                session.contended.add(queue)
                return ZooKeeperRefusal(resource, left)
            self._waited = True
            found, base = yield from self._requests.ask(look)
        session.contended.discard(queue)
        fence = self._fences.of(stat.czxid, base)
        return fence if is_unchanged(stat.czxid, found) else None

    def _look_first(self, queue: str) -> StoreProtocol[float | None]:
        """Return the TTL of the holder if the last attempt was refused, and a node is still there.

        It only reads. Clients that do not wait but try in a loop would otherwise create a node
        each time, and be refused because of each other's nodes.
        """
        if queue not in self._session.contended or self._clock() < self._wanted.deadline:
            return None
        (names,) = yield from self._requests.ask(lambda client: [client.get_children_async(queue)])
        nodes = nodes_of(names)
        return (yield from self._blocked(queue, nodes)) if nodes else None

    def _blocked(self, queue: str, before: Sequence[Node]) -> StoreProtocol[float | None]:
        """Wait for the nodes before; if the deadline comes first, return the holder's TTL."""
        first, now = before[0], self._clock()
        left = self._wanted.deadline - now
        if first.is_min_hold or left <= 0:
            path = f"{queue}/{first.name}"
            (found,) = yield from self._requests.ask(lambda client: [client.get_async(path)])
            if isinstance(found, NoNodeError):
                return None
            held_for = seconds_left(found, self._session.servers_time())
            if first.is_min_hold and held_for <= 0:
                yield from self._requests.ask(lambda client: [client.delete_async(path)])
                return None
            if left <= 0:
                return held_for
            if len(before) == 1:  # it may have been handed on, and be taken before its time is over
                yield from self._requests.until_deleted(path, min(held_for + 0.001, left))
                return None
        yield from self._requests.until_deleted(f"{queue}/{before[-1].name}", left)
        return None


def replace_all(
    nodes: Sequence[str],
    others: Sequence[str],
    data: Sequence[bytes],
    ephemeral: bool,
    client: KazooClient,
) -> list[Any]:
    """Replace nodes by others with this data in one transaction."""
    transaction = client.transaction()
    for node, other, stored in zip(nodes, others, data, strict=True):
        transaction.delete(node)
        transaction.create(other, stored, ephemeral=ephemeral)
    return [transaction.commit_async()]
