"""Requests of a protocol in one session of ZooKeeper; fences; servers that forgot locks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from redlock_django.backends.protocol_backend import StoreProtocol, StoreStep
from redlock_django.backends.zookeeper.client import explained
from redlock_django.backends.zookeeper.paths import (
    LARGEST,
    SPAN,
    trusted_in,
    untrusted,
)
from redlock_django.backends.zookeeper.requests import INTERRUPTED, RequestBatch
from redlock_django.backends.zookeeper.session import Session

EXPECTED = (NoNodeError, NodeExistsError, BadVersionError)
"""The errors that are answers: others made or deleted a node."""

AGAIN = 0.05  # seconds until what was interrupted is repeated


class Interrupted(Exception):
    """The connection or the session was lost, and with it perhaps the place in a queue."""


class Requests:
    """Requests in one generation of a session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.generation = session.generation

    def ask(
        self, send: Callable[[KazooClient], Sequence[Any]], *, is_write: bool = False
    ) -> StoreProtocol[list[Any]]:
        """Return the answers, EXPECTED errors among them. Reads are repeated if interrupted.

        Raises Interrupted, or StoreUnavailable if the servers do not answer or refuse.
        """
        while True:
            seconds = self.session.settings.zookeeper_timeout
            batch = RequestBatch(send, seconds=seconds, is_proof=is_write)
            yield batch
            failed = [one for one in batch.results if isinstance(one, Exception)]
            if batch.generation != self.generation:
                raise Interrupted
            for one in failed:
                if not isinstance(one, (*EXPECTED, *INTERRUPTED)):
                    raise self.session.unavailable(explained(one))
            if batch.is_answered:
                return batch.results
            if is_write:
                raise Interrupted
            yield StoreStep(AGAIN)

    def until_deleted(self, path: str, seconds: float) -> StoreProtocol[None]:
        """Wait until a node is deleted, or changed, for at most `seconds`."""
        pause, watches = StoreStep(seconds), self.session.watches
        watches.add(pause, frozenset({path}))
        try:
            yield from self._until_ended(pause, path)
        finally:
            watches.remove(pause)

    def _until_ended(self, pause: StoreStep, path: str) -> StoreProtocol[None]:
        # Not in the `try`, whose loops must not jump past it: see docs/contributing/interrupts.md.
        # One callback for all looks, which kazoo keeps once: see `Watches`. Not `exists`, whose
        # watch of a node that is gone stays, on the servers too, for as long as the session.
        changed = self.session.watches.changed
        (found,) = yield from self.ask(lambda client: [client.get_async(path, changed)])
        if not isinstance(found, NoNodeError):
            yield pause


class Fences:
    """The fences of a tree: a base, plus the transactions of the servers since it was set.

    Only a tree that is trusted has a base, and no lock is granted without it: see `Tree`. Locks may
    have been forgotten with the tree before, for MAX_TTL.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._tree = requests.session.tree

    def prepare(self) -> StoreProtocol[None]:
        """Make the tree, and raise the base of fences to the servers' time, once in a session.

        A store used before this one may have issued fences up to the current time.
        Raises StoreUnavailable if the tree is not trusted yet.
        """
        session = self._requests.session
        while session.prepared != self._requests.generation:
            root, locks, base = yield from self._look_at_tree()
            if isinstance(base, NoNodeError):
                forgotten = session.settings.max_ttl
                if (left := trusted_in(root.mtime / 1000, locks, forgotten)) > 0:
                    raise session.unavailable(untrusted(left), retry_after=left)
                yield from self._requests.ask(self._trust, is_write=True)
                continue
            session.note_servers_time(root.mtime)
            number, now = self._number(base), root.mtime * 1000
            if number <= now:
                yield from self.raise_base()
            else:
                yield _until_past(number, now)
            session.prepared = self._requests.generation

    def declare(self) -> StoreProtocol[bool]:
        """Make the tree and trust it; return whether it was not trusted before."""
        declared = False
        while True:
            _, _, base = yield from self._look_at_tree()
            if not isinstance(base, NoNodeError):
                return declared
            yield from self._requests.ask(self._trust, is_write=True)
            declared = True

    def _look_at_tree(self) -> StoreProtocol[list[Any]]:
        """Make the tree if it is not there; return the root, the node of all queues, the base."""
        while True:
            root, locks, base = yield from self._requests.ask(self._look_at_all, is_write=True)
            if not isinstance(root, NoNodeError) and locks is not None:
                return [root, locks, base]
            yield from self._requests.ask(self._make, is_write=True)

    def of(self, transaction: int, base: Any) -> int | None:
        """Return the fence of a transaction of the holder, made once it was first in the queue.

        `base` is the node of the base since then. None if the base must be raised first, and
        another transaction be made. Raises Interrupted if the tree was removed.
        """
        if isinstance(base, NoNodeError):
            raise self._removed()
        since = transaction - int(base[1].mzxid)
        return self._number(base) + since if 0 < since <= SPAN else None

    def raise_base(self) -> StoreProtocol[None]:
        """Raise the base, above all fences before it, and to the servers' time.

        Returns once the servers' time is not before it.
        """
        path = self._tree.fences
        while True:
            root, base = yield from self._requests.ask(self._look, is_write=True)
            if isinstance(base, NoNodeError):
                raise self._removed()
            new = max(root.mtime * 1000 + 1000, self._number(base) + SPAN + 1)
            send = partial(_set, path, str(new).encode(), base[1].version)
            (stored,) = yield from self._requests.ask(send, is_write=True)
            if not isinstance(stored, EXPECTED):
                yield _until_past(new, root.mtime * 1000)
                return

    def _number(self, base: Any) -> int:
        data: bytes = base[0]
        if data.isdigit() and int(data) < LARGEST - SPAN:
            return int(data)
        path = self._tree.fences
        raise self._requests.session.unavailable(f"{path} has no valid number: delete the node")

    def _removed(self) -> Interrupted:
        """Return the error for a tree that was removed since the session looked at it."""
        self._requests.session.prepared = -1
        return Interrupted()

    def _look(self, client: KazooClient) -> list[Any]:
        # The write of the root shows the servers' time.
        return [client.set_async(self._tree.root, b""), client.get_async(self._tree.fences)]

    def _look_at_all(self, client: KazooClient) -> list[Any]:
        root, base = self._look(client)
        return [root, client.exists_async(self._tree.locks), base]

    def _make(self, client: KazooClient) -> list[Any]:
        # Before the new queues exist, whose locks are not those that other clients may hold.
        base = client.delete_async(self._tree.fences)
        return [base, *(client.create_async(path) for path in self._tree.all)]

    def _trust(self, client: KazooClient) -> list[Any]:
        return [client.create_async(self._tree.fences, b"0")]


def _until_past(base: int, now: int) -> StoreStep:
    """Return the pause until a base is not ahead of the servers' time, which is `now`, in µs.

    Otherwise the store that a site uses next could give lower fences.
    """
    return StoreStep((base - now) / 1_000_000)


def _set(path: str, data: bytes, version: int, client: KazooClient) -> list[Any]:
    return [client.set_async(path, data, version)]
