"""The nodes that an attempt creates in queues, and why it is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from redlock_django.backends.protocol_backend import StoreProtocol
from redlock_django.backends.zookeeper.client import explained
from redlock_django.backends.zookeeper.fences import EXPECTED, Fences, Interrupted, Requests
from redlock_django.backends.zookeeper.paths import Node, in_order
from redlock_django.backends.zookeeper.requests import RequestBatch, create_container

Look = Callable[[KazooClient], list[Any]]
"""Makes the requests that read queues."""


class ZooKeeperRefusal(NamedTuple):
    """Why a resource is refused; it is held for so many seconds if its holder does not extend."""

    resource: str
    seconds: float
    why: str = "held by another client"


class OwnNodes:
    """The nodes of an attempt, at most one in a queue: `paths` has the path of each, by queue."""

    def __init__(self, requests: Requests, fences: Fences, token: str, data: bytes) -> None:
        self.token = token
        self.paths: dict[str, str] = {}  # "" where the node may have been created
        self._requests = requests
        self._session = requests.session
        self._fences = fences
        self._data = data

    def join(self, queue: str, look: Look) -> StoreProtocol[tuple[Any, list[Any]]]:
        """Create a node at the end of a queue; return its stat and the answers to `look`."""
        send = partial(self._creation, queue, look)
        self.paths[queue] = ""
        while True:
            created, *answers = yield from self._requests.ask(send, is_write=True)
            if not isinstance(created, NoNodeError):
                self.paths[queue], stat = created
                return stat, answers
            yield from self._make(queue)

    def join_unchanged(
        self, queue: str, version: int | None, look: Look
    ) -> StoreProtocol[tuple[Any, list[Any]] | None]:
        """Create a node in a queue that no other client has joined so since it had this version.

        Return the stat of the queue, which the same transaction has changed, and the answers to
        `look`; None if another client was faster. The version is None if there was no queue, which
        is made then.
        """
        if version is None:
            yield from self._make(queue)
            version = 0
        self.paths[queue] = ""
        send = partial(self._transaction, queue, version, look)
        (results, *answers) = yield from self._requests.ask(send, is_write=True)
        *_, changed, created = results
        if isinstance(created, str):
            self.paths[queue] = created
            return changed, answers
        del self.paths[queue]
        reasons = [one for one in results if isinstance(one, EXPECTED)]
        if not reasons:
            raise self._session.unavailable(explained(results[0]))
        return None

    def rewrite(self) -> StoreProtocol[dict[str, int]]:
        """Write the own nodes again, which are first in their queues; return the fences, by queue.

        Raises Interrupted if one of them is not there any more.
        """
        paths = dict(self.paths)
        send = partial(self._rewriting, tuple(paths.values()))
        while True:
            *stats, base = yield from self._requests.ask(send, is_write=True)
            if any(isinstance(stat, NoNodeError) for stat in stats):
                raise Interrupted
            fences = [self._fences.of(stat.mzxid, base) for stat in stats]
            known = [fence for fence in fences if fence is not None]
            if len(known) == len(fences):
                return dict(zip(paths, known, strict=True))
            yield from self._fences.raise_base()

    def leave(self, queue: str) -> None:
        """Delete the own node in a queue soon; does nothing if there is none."""
        if path := self.paths.get(queue):
            self._session.post_delete([path])
            del self.paths[queue]  # last: an attempt that is interrupted here deletes it again

    def undo(self) -> None:
        """Leave all queues that the attempt has joined or is about to join."""
        self._session.post_delete([path for path in self.paths.values() if path])
        for queue in [queue for queue, path in self.paths.items() if not path]:
            listing = RequestBatch(partial(_list, queue), then=partial(self._delete_listed, queue))
            self._session.post(listing)
        self.paths.clear()  # last: an attempt that is interrupted here leaves them again

    def _delete_listed(self, queue: str, listing: RequestBatch) -> None:
        names = listing.results[1]
        if not isinstance(names, Exception):
            ours = [f"{queue}/{name}" for name in names if name.startswith(self.token)]
            self._session.post_delete(ours)

    def _make(self, queue: str) -> StoreProtocol[None]:
        """Make a queue, and the whole tree if it was removed."""
        made = yield from self._requests.ask(
            lambda client: [create_container(client, queue)], is_write=True
        )
        if isinstance(made[0], NoNodeError):
            self._session.prepared = -1
            yield from self._fences.prepare()

    def _creation(self, queue: str, look: Look, client: KazooClient) -> list[Any]:
        created = client.create_async(
            f"{queue}/{self.token}-",
            self._data,
            ephemeral=True,
            sequence=True,
            include_data=True,
        )
        return [created, *look(client)]

    def _rewriting(self, paths: Sequence[str], client: KazooClient) -> list[Any]:
        written = [client.set_async(path, self._data) for path in paths]
        return [*written, client.get_async(self._session.tree.fences)]

    def _transaction(self, queue: str, version: int, look: Look, client: KazooClient) -> list[Any]:
        transaction = client.transaction()
        transaction.set_data(queue, b"", version)
        transaction.create(f"{queue}/{self.token}-", self._data, ephemeral=True, sequence=True)
        return [transaction.commit_async(), *look(client)]


def look_at(queue: str, fences: str, client: KazooClient) -> list[Any]:
    """Ask for the nodes of a queue, with its stat, and the base of fences."""
    # In this order: the base is at least as new as the list.
    nodes = client.get_children_async(queue, include_data=True)
    return [nodes, client.get_async(fences)]


def nodes_in(found: Any) -> list[Node]:
    """Return the nodes of a queue from what `look_at` has found; none if it does not exist."""
    return [] if isinstance(found, NoNodeError) else in_order(found[0])


def is_unchanged(since: int, found: tuple[Any, Any]) -> bool:
    """Return whether no node has come to a queue, or left it, since this transaction.

    So the client that is the first now, and created its node then, was the first from then on.
    Otherwise others may have been served in between, by later transactions.
    """
    _, stat = found
    return int(stat.pzxid) == since


def nodes_of(names: Any) -> list[Node]:
    """Return the nodes of a queue from the answer to a list of it; none if it does not exist."""
    return [] if isinstance(names, NoNodeError) else in_order(names)


def _list(queue: str, client: KazooClient) -> list[Any]:
    # After a lost connection, another server may not know the created nodes yet.
    return [client.sync_async(queue), client.get_children_async(queue)]
