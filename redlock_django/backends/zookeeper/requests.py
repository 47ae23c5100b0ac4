"""Requests to ZooKeeper: those that are sent together, and nodes that are watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import ConnectionClosedError, ConnectionLoss, SessionExpiredError
from kazoo.protocol.serialization import Create2
from kazoo.security import OPEN_ACL_UNSAFE

from redlock_django.backends.protocol_backend import StoreStep

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.protocol.states import WatchedEvent

INTERRUPTED = (ConnectionLoss, ConnectionClosedError, SessionExpiredError)
"""The errors after which it is unknown whether a request was executed."""

_CONTAINER = 4  # the flag of the protocol


class RequestBatch(StoreStep):
    """Requests that are sent together, in their order. `results` has an answer or error for each.

    `send` makes the requests with a client. With `is_proof`, an answer proves that the session was
    alive when the requests were sent: a majority of the servers answers writes, while any one of
    them answers reads. `generation` is the session that they were sent in. If the caller sets
    `unwanted`, they are not sent any more. `then` is called with the batch at its end, in a thread
    of kazoo.
    """

    def __init__(
        self,
        send: Callable[[KazooClient], Sequence[Any]],
        *,
        seconds: float = 0.0,
        is_proof: bool = False,
        then: Callable[[RequestBatch], object] | None = None,
    ) -> None:
        super().__init__(seconds)
        self.results: list[Any] = []
        self.is_proof = is_proof
        self.generation = -1
        self.sent = 0.0
        self.unwanted = False
        self.then = then
        self._send = send
        self._missing = 0
        self._answered: Callable[[RequestBatch], object]

    @property
    def is_answered(self) -> bool:
        """True if the servers have answered all requests."""
        return self.ended and not any(isinstance(one, INTERRUPTED) for one in self.results)

    def send(
        self,
        client: KazooClient,
        generation: int,
        now: float,
        answered: Callable[[RequestBatch], object],
    ) -> None:
        """Send the requests, in the thread of the session; `answered` is called before `then`."""
        self.generation, self.sent, self._answered = generation, now, answered
        try:
            pending = self._send(client)
        except Exception as error:  # noqa: BLE001 - the thread of the session must go on
            self.results = [error]
            self._finish()
            return
        self._missing = len(pending)
        self.results = [None] * len(pending)
        for index, result in enumerate(pending):
            result.rawlink(partial(self._arrived, index))

    def _arrived(self, index: int, result: Any) -> None:
        # kazoo calls this in one thread, one result after the other.
        self.results[index] = result.value if result.exception is None else result.exception
        self._missing -= 1
        if not self._missing:
            self._finish()

    def _finish(self) -> None:
        self.ended = True
        self._answered(self)
        if self.then is not None:
            self.then(self)
        self.end()


class CreateContainer(Create2):  # type: ignore[misc]
    """The creation of a node that the servers delete some time after its last child."""

    type = 19


def create_container(client: KazooClient, path: str) -> Any:
    """Create such a node, which kazoo has no function for; return kazoo's result."""
    result = client.handler.async_result()
    acl = client.default_acl or OPEN_ACL_UNSAFE
    client._call(CreateContainer(path, b"", acl, _CONTAINER), result)
    return result


class Watches:
    """The steps that end when nodes, or the children of nodes, change.

    kazoo keeps each callback until its node changes. Here all watches of a node have one callback,
    `changed`, however many clients have watched it since it changed last.
    """

    def __init__(self) -> None:
        self._paths: dict[StoreStep, frozenset[str]] = {}

    def add(self, step: StoreStep, paths: frozenset[str]) -> None:
        """End a step when one of the nodes changes. Called before the servers are asked."""
        self._paths[step] = paths

    def remove(self, step: StoreStep) -> None:
        """Forget a step; does nothing if it was not added."""
        self._paths.pop(step, None)

    def changed(self, event: WatchedEvent) -> None:
        """End the steps of a node that has changed; all if the connection was lost."""
        for step, paths in list(self._paths.items()):
            if event.path is None or event.path in paths:
                step.end()
