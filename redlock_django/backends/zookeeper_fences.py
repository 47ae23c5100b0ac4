"""Requests of a protocol in one session of ZooKeeper, and the fences of the locks that it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from redlock_django.backends.zookeeper_client import explained
from redlock_django.backends.zookeeper_kazoo import (
    BadVersionError,
    KazooClient,
    NodeExistsError,
    NoNodeError,
)
from redlock_django.backends.zookeeper_session import Session
from redlock_django.backends.zookeeper_steps import INTERRUPTED, Batch, Protocol, Step
from redlock_django.backends.zookeeper_tree import LARGEST, SPAN, Tree, fence_of, raised

EXPECTED = (NoNodeError, NodeExistsError, BadVersionError)
"""The errors that are answers: others made or deleted a node."""

_AGAIN = 0.05  # seconds until a request that was interrupted is repeated


class Interrupted(Exception):
    """The connection or the session was lost, and with it perhaps the place in a queue."""


class Requests:
    """Requests in one generation of a session, each answered within `seconds`."""

    def __init__(self, session: Session, seconds: float) -> None:
        self.session = session
        self.generation = session.generation
        self._seconds = seconds

    def ask(
        self, send: Callable[[KazooClient], Sequence[Any]], *, is_write: bool = False
    ) -> Protocol[list[Any]]:
        """Return the answers, EXPECTED errors among them. Reads are repeated if interrupted.

        Raises Interrupted, or StoreUnavailable if the servers do not answer or refuse.
        """
        while True:
            batch = Batch(send, seconds=self._seconds, is_proof=is_write)
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
            yield Step(_AGAIN)


class Fences:
    """The fences of a tree: a base, plus the transactions of the servers since it was set."""

    def __init__(self, requests: Requests, tree: Tree) -> None:
        self._requests = requests
        self._tree = tree

    def prepare(self) -> Protocol[None]:
        """Make the tree, and raise the base of fences to the servers' time, once in a session.

        Other stores may have given fences up to now, before the site was switched to this one.
        """
        session = self._requests.session
        while session.prepared != self._requests.generation:
            root, base = yield from self._requests.ask(self._look, is_write=True)
            if isinstance(root, NoNodeError):
                yield from self._requests.ask(self._make, is_write=True)
                continue
            now = root.mtime * 1000
            number = 0 if isinstance(base, NoNodeError) else self._number(base)
            if number <= now:
                yield from self._raise_base()
            else:
                yield _until_past(number, now)
            session.prepared = self._requests.generation

    def of_node(self, created: int, base: Any) -> Protocol[int]:
        """Return the fence of a node that is the first in its queue.

        `created` is the transaction that made it, and `base` the node of the base since then.
        """
        if not isinstance(base, NoNodeError):
            fence = fence_of(self._number(base), int(base[1].mzxid), created)
            if fence is not None:
                return fence
        return (yield from self._raise_base())

    def _raise_base(self) -> Protocol[int]:
        """Raise the base of fences; return it, a fence that no other client gets.

        Returns once the servers' time is not before it.
        """
        path = self._tree.fences
        while True:
            root, base = yield from self._requests.ask(self._look, is_write=True)
            now: int = root.mtime * 1000
            if isinstance(base, NoNodeError):
                new = now + 1000
                send = partial(_create, path, str(new).encode())
            else:
                new = raised(self._number(base), now + 1000)
                send = partial(_set, path, str(new).encode(), base[1].version)
            (stored,) = yield from self._requests.ask(send, is_write=True)
            if not isinstance(stored, EXPECTED):
                yield _until_past(new, now)
                return new

    def _number(self, base: Any) -> int:
        data: bytes = base[0]
        if data.isdigit() and int(data) < LARGEST - SPAN:
            return int(data)
        path = self._tree.fences
        raise self._requests.session.unavailable(f"{path} has no valid number: delete the node")

    def _look(self, client: KazooClient) -> list[Any]:
        # The write of the root shows the servers' time.
        return [client.set_async(self._tree.root, b""), client.get_async(self._tree.fences)]

    def _make(self, client: KazooClient) -> list[Any]:
        return [client.create_async(path) for path in self._tree.all]


def _until_past(fence: int, now: int) -> Step:
    """Return the pause until a fence is not ahead of the servers' time, which is `now`, in µs.

    Otherwise the store to which a site moves next would give lower fences.
    """
    return Step((fence - now) / 1_000_000)


def _create(path: str, data: bytes, client: KazooClient) -> list[Any]:
    return [client.create_async(path, data)]


def _set(path: str, data: bytes, version: int, client: KazooClient) -> list[Any]:
    return [client.set_async(path, data, version)]
