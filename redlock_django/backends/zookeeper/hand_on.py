"""Hand a lease in ZooKeeper on: a transaction replaces its nodes, at their places in the queues.

The nodes of the giver belong to its session. Those of a lease that was handed on belong to none:
as after a release before the end of a minimum hold, other clients remove them when their time is
over. The client that takes the lease replaces them by nodes of its own session.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial

from kazoo.exceptions import NoNodeError

from redlock_django.backends.base import IN_TRANSIT
from redlock_django.backends.protocol_backend import StoreProtocol
from redlock_django.backends.zookeeper.attempt import ZooKeeperLease, replace_all
from redlock_django.backends.zookeeper.fences import Fences, Requests
from redlock_django.backends.zookeeper.own_nodes import nodes_of
from redlock_django.backends.zookeeper.paths import data_of, path_in_place, seconds_left
from redlock_django.backends.zookeeper.requests import RequestBatch
from redlock_django.backends.zookeeper.session import Session
from redlock_django.engine.refusal import refused_ticket
from redlock_django.engine.validity import Lease, end_of_min_hold, valid_until


class ZooKeeperSwap:
    """The replacement of the nodes of a lease, with a token of its own, and its undo."""

    def __init__(
        self,
        session: Session,
        lease: Lease,
        ttl: float,
        holder: str,
    ) -> None:
        self._session = session
        self._requests = Requests(session)
        self._clock = session.clock
        self._old = lease
        self._started = started = session.clock()
        self._new = ZooKeeperLease(
            lease.resources, secrets.token_hex(16), holder, ttl, started,
            valid_until(ttl, started), lease.fences, home=session, limit=lease.limit,
            givers=lease.givers, nodes=(), generation=self._requests.generation,
        )  # fmt: skip
        self._giver: ZooKeeperLease | None = None
        self._is_over = False  # a node of the ticket is there, and its time is over
        self._old_nodes: Sequence[str] = ()
        self._old_data: Sequence[bytes] = ()

    def take(self) -> StoreProtocol[ZooKeeperLease]:
        """Replace the nodes, and return the new lease.

        Raises TicketUsed or LockLost if the nodes are not there.
        """
        if self._old.home is not None:
            return (yield from self._hand_on())
        return (yield from self._resume())

    def _hand_on(self) -> StoreProtocol[ZooKeeperLease]:
        """Replace the nodes of the giver by nodes without a session."""
        old, new = self._old, self._new
        assert isinstance(old, ZooKeeperLease)
        self._giver = old
        if self._started >= old.until or old.generation != self._session.generation:
            raise refused_ticket(old, is_used=False)
        new.earliest_end = old.earliest_end
        new.nodes = tuple(path_in_place(node, new.token, is_min_hold=True) for node in old.nodes)
        self._old_nodes = old.nodes
        self._old_data = [data_of(old.ttl, old.value)] * len(old.nodes)
        self._session.held.remove(old.token)
        if not (yield from self._replace(ephemeral=False)):
            raise refused_ticket(old, is_used=False)
        new.ends = self._session.servers_time() + new.ttl
        return new

    def _resume(self) -> StoreProtocol[ZooKeeperLease]:
        """Replace the nodes without a session by nodes of this one."""
        old, new, session = self._old, self._new, self._session
        yield from Fences(self._requests).prepare()
        found = yield from self._find()
        if len(found) == len(old.resources):
            self._old_nodes = [path for path, _, _ in found]
            self._old_data = [data_of(left, value) for _, left, value in found]
            new.nodes = tuple(path_in_place(path, new.token) for path in self._old_nodes)
            session.hold(new.token, self._started + new.ttl, new.nodes)
            if (yield from self._replace(ephemeral=True)):
                now = self._clock()
                if now >= new.until:
                    raise session.unavailable("the answers came too late")
                new.earliest_end = end_of_min_hold(old, max(left for _, left, _ in found), now)
                return new
        # Before its time is over, a lock that is not there was taken.
        raise refused_ticket(old, is_used=not self._is_over and session.servers_time() < old.ends)

    def undo(self) -> None:
        """Restore the old nodes, if they were replaced."""
        new, session = self._new, self._session
        session.held.remove(new.token)
        if self.is_repeatable:
            return
        giver = self._giver
        if giver is not None:
            session.hold(giver.token, giver.started + giver.ttl, giver.nodes)
        is_givers = giver is not None
        back = partial(replace_all, new.nodes, self._old_nodes, self._old_data, is_givers)
        session.post(RequestBatch(back))

    @property
    def is_repeatable(self) -> bool:
        """True unless the nodes may have been replaced."""
        return not self._new.nodes

    def _find(self) -> StoreProtocol[list[tuple[str, float, str]]]:
        """Return the node of each resource that has the token: path, seconds left, and value."""
        tree = self._session.tree
        queues = [tree.queue(resource) for resource in self._old.resources]
        # Without `sync`, a server that lags behind could not know yet what was handed on.
        answers = yield from self._requests.ask(
            lambda client: [
                client.sync_async(tree.locks),
                *(client.get_children_async(queue) for queue in queues),
            ]
        )
        paths = [
            f"{queue}/{node.name}"
            for queue, names in zip(queues, answers[1:], strict=True)
            for node in nodes_of(names)
            if node.token == self._old.token and node.is_min_hold
        ]
        if not paths:
            return []
        nodes = yield from self._requests.ask(
            lambda client: [client.get_async(path) for path in paths]
        )
        found = []
        for path, node in zip(paths, nodes, strict=True):
            if not isinstance(node, NoNodeError):
                left = seconds_left(node, self._session.servers_time())
                self._is_over = self._is_over or left <= 0
                if left > 0:
                    found.append((path, left, f"{self._old.token} {IN_TRANSIT}"))
        return found

    def _replace(self, *, ephemeral: bool) -> StoreProtocol[bool]:
        """Replace the old nodes by the new ones; return False if one of them is not there."""
        new = self._new
        data = [data_of(new.ttl, new.value)] * len(new.nodes)
        send = partial(replace_all, self._old_nodes, new.nodes, data, ephemeral)
        (results,) = yield from self._requests.ask(send, is_write=True)
        return not any(isinstance(one, Exception) for one in results)
