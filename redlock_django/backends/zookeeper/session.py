"""The session of this process with ZooKeeper: one thread that sends, and proves that it is alive.

The servers delete the nodes of a session that they have not heard of for its timeout. So a lock is
certainly held only for a part of this time after the last answer of a majority: `is_uncertain`.
A lost session (`generation` grows) has lost its locks.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.states import KazooState, KeeperState

from redlock_django.backends.base import Notice
from redlock_django.backends.protocol_backend import Acquisition, StepRunner
from redlock_django.backends.zookeeper.client import (
    THREADS,
    close_inherited,
    drop_connection,
    is_own_thread,
    new_client,
    on_session_timeout,
    stop,
    with_failure,
)
from redlock_django.backends.zookeeper.paths import Tree
from redlock_django.backends.zookeeper.requests import RequestBatch, Watches
from redlock_django.backends.zookeeper.settings import ZooKeeperSettings
from redlock_django.exceptions import StoreUnavailable
from redlock_django.wire.wakeup import Wakeup

CLOSING = 2.0  # seconds for which a process that ends waits for its last releases
# Parts of the session timeout. A server may have heard of the session a third of it (kazoo's pings)
# before a request that it answers, and the leader hears of that a tick later.
_CERTAIN, _BEAT, _HUNG = 1 / 2, 1 / 6, 1 / 4
_AGAIN = 1.0  # seconds until a client that was refused is replaced


@dataclass(slots=True, eq=False)
class _Held:
    until: float
    nodes: tuple[str, ...]


class HeldNodes:
    """The nodes of each held lease, by token, and the moment at which its TTL ends.

    ZooKeeper does not know of TTLs. Callers add, prolong and remove leases; one thread removes
    those that are over.
    """

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(self, token: str, until: float, nodes: tuple[str, ...]) -> None:
        """Add the nodes of a lease."""
        self._held[token] = _Held(until, nodes)

    def prolong(self, token: str, until: float) -> bool:
        """Hold the nodes of a lease longer; return False if they are not held any more."""
        held = self._held.get(token)
        if held is not None:
            held.until = max(held.until, until)
        return held is not None and self._held.get(token) is held

    def remove(self, token: str) -> None:
        """Remove a lease; does nothing if it is not held."""
        self._held.pop(token, None)

    def clear(self) -> None:
        """Remove all leases."""
        self._held.clear()

    def next_end(self) -> float:
        """Return the moment at which the next TTL ends."""
        return min((held.until for held in list(self._held.values())), default=math.inf)

    def pop_over(self, now: float) -> list[tuple[str, ...]]:
        """Remove the leases whose TTL has ended, and return their nodes."""
        over = []
        for token, held in list(self._held.items()):
            # Removed first: an extension that comes now finds that the lease is lost.
            if now >= held.until and self._held.pop(token, None) is held:
                if now >= held.until:
                    over.append(held.nodes)
                else:
                    self._held[token] = held
        return over


class Session(StepRunner):
    """The session of one process. After a fork, make a new one: its threads are the parent's.

    The thread deletes the nodes of `held` leases whose TTL has ended. `contended` has the queues in
    which this process was refused the last time.
    """

    def __init__(
        self, settings: ZooKeeperSettings, clock: Callable[[], float], notice: Notice
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.tree = Tree(settings.root)
        self.generation = 0
        self.prepared = -1  # the generation for which the fences have been raised
        self.is_connected = False
        self.reason = "not connected yet"
        self.held = HeldNodes()
        self.contended: set[str] = set()
        self.watches = Watches()
        self._servers_ahead = 0.0  # their time in seconds, minus ours
        self._notice = notice
        self._timeout = settings.session_timeout  # as the servers granted it
        self._certain_until = -math.inf
        self._closed = False
        self._replaced_at = math.inf
        self._up: bool | None = None
        self._steps: queue.SimpleQueue[RequestBatch | None] = queue.SimpleQueue()
        self._unsent: list[RequestBatch] = []
        self._unanswered: dict[RequestBatch, float] = {}  # when they were sent, the oldest first
        self._changed_at = self._beats_at = 0.0
        self._wakes_at = math.inf
        self._client: KazooClient | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()  # a signal handler may interrupt its own thread

    def begin_work(self, step: RequestBatch) -> None:
        if self._closed:
            raise self.unavailable("the session of locks has been closed")
        self.connect()
        self._steps.put(step)

    def too_late(self, step: RequestBatch) -> StoreUnavailable:
        step.unwanted = True
        why = "no answer" if self.is_connected else with_failure(self.reason, self._client)
        return self.unavailable(f"{why} within {step.seconds:.2g} s")

    def is_inside(self) -> bool:
        return is_own_thread()

    def patient_until(self, wanted: Acquisition) -> float:
        """Return until when an acquisition that was interrupted is tried again.

        Until then, clients in front may also take their turn.
        """
        return wanted.asked + max(wanted.wait, self.settings.zookeeper_timeout)

    def unavailable(self, why: str, retry_after: float | None = None) -> StoreUnavailable:
        """Return the error for servers that did not answer, or not as expected."""
        name = self.settings.ensemble
        return StoreUnavailable(
            f"ZooKeeper {name}: {why}", tally={name: why}, retry_after=retry_after
        )

    def connect(self) -> None:
        """Start the thread, which connects; does nothing if it has started."""
        if self._thread is None:
            with self._starting:
                self._start()

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            thread = threading.Thread(target=self._run, name=THREADS, daemon=True)
            thread.start()
            self._thread = thread

    def post(self, batch: RequestBatch) -> None:
        """Send requests soon, and again after an interruption. Never raises."""
        then = batch.then

        def again_if_interrupted(sent: RequestBatch) -> None:
            if any(isinstance(result, ConnectionLoss) for result in sent.results):
                self._unsent.append(batch)
                self.look()
            elif then is not None:
                then(sent)

        batch.then = again_if_interrupted
        with suppress(StoreUnavailable, RuntimeError):  # closed, or no thread can be started
            self.begin(batch)

    def post_delete(self, nodes: Sequence[str]) -> None:
        """Delete nodes soon."""
        if nodes:
            self.post(RequestBatch(lambda client: [client.delete_async(node) for node in nodes]))

    def hold(self, token: str, until: float, nodes: tuple[str, ...]) -> None:
        """Delete these nodes at the moment `until`, unless the lease is released before."""
        self.held.add(token, until, nodes)
        if until < self._wakes_at:
            self.look()

    def look(self) -> None:
        """Make the thread look now at what is due, and not at the next moment that it knows."""
        self._steps.put(None)

    def note_servers_time(self, milliseconds: int) -> None:
        """Note the servers' time, as an answer has just shown it."""
        self._servers_ahead = milliseconds / 1000 - self.clock()

    def servers_time(self) -> float:
        """Return the servers' time, in seconds."""
        return self.clock() + self._servers_ahead

    def is_uncertain(self) -> bool:
        """Return whether the servers may have ended the session without our knowledge."""
        return not self.is_connected or self.clock() >= self._certain_until

    def abandon(self) -> None:
        """Leave the session to the parent process: a forked child must not end it."""
        if self._client is not None:
            close_inherited(self._client)

    def close(self) -> None:
        """Send what is queued and end the session, within a limit of time."""
        with self._starting:
            self._closed, thread = True, self._thread
        if thread is not None:
            self.look()
            if thread is not threading.current_thread():
                thread.join(CLOSING)

    # In the thread of the session.

    def _run(self) -> None:
        client = self._new_client()
        while True:
            delay = None if self._wakes_at == math.inf else self._wakes_at - self.clock()
            batch = None
            with suppress(queue.Empty):
                batch = self._steps.get(timeout=None if delay is None else max(0.0, delay))
            if batch is not None and not batch.unwanted:
                self._send(batch, client)
            if batch is None or self.clock() >= self._wakes_at:
                if self._closed and self._steps.empty():
                    break
                if self.clock() >= self._replaced_at:
                    self._replaced_at = math.inf
                    self._client = None
                    stop(client)
                    client = self._new_client()
                self._wakes_at = math.inf  # a lease that is added from here on wakes the thread
                self._look(client)
                self._wakes_at = self._next_look(client)
        if self.is_connected:
            ended = Wakeup()
            last = RequestBatch(lambda client: [client.sync_async("/")])
            last.wake = ended.wake
            self._send(last, client)
            ended.wait(CLOSING / 2)
        self._client = None
        stop(client)

    def _next_look(self, client: KazooClient) -> float:
        """Return the moment at which something is to be done."""
        gone_at = self._hung_at() if self.is_connected else self._gone_at(client)
        moments = [self._replaced_at, gone_at]
        if self.held:
            moments += [self._beats_at, self.held.next_end()]
        return min(moments)

    def _look(self, client: KazooClient) -> None:
        """Delete nodes that are over, repeat interrupted requests, and prove the session alive."""
        now = self.clock()
        for nodes in self.held.pop_over(now):
            self.post_delete(nodes)
        if self.is_connected and now >= self._hung_at():
            # kazoo notices a server that hangs only while it sends it nothing.
            self._unanswered.clear()
            drop_connection(client)
        if not self.is_connected and now >= self._gone_at(client):
            # Servers refuse a client that has seen more than they have: after their data was lost
            # or restored, for ever. It reads from the beginning, as in a new session.
            client.last_zxid = 0
            self.generation += 1
        if self.is_connected and self._unsent:
            unsent, self._unsent = self._unsent, []
            for batch in unsent:
                self._send(batch, client)
        if self.held and now >= self._beats_at:
            self._beats_at = now + self._timeout * _BEAT
            if self.is_connected:
                root = self.tree.root
                beat = RequestBatch(lambda client: [client.set_async(root, b"")], is_proof=True)
                self._send(beat, client)

    def _send(self, batch: RequestBatch, client: KazooClient) -> None:
        now = self.clock()
        self._unanswered[batch] = now
        self._wakes_at = min(self._wakes_at, now + self._timeout * _HUNG)
        batch.send(client, self.generation, now, self._answered)

    def _hung_at(self) -> float:
        """Return the moment from which a server that still has not answered is given up."""
        oldest = next(iter(list(self._unanswered.values())), math.inf)
        return max(oldest, self._changed_at) + self._timeout * _HUNG

    def _gone_at(self, client: KazooClient) -> float:
        """Return when a client may forget the transactions that its lost connection saw."""
        if self.held or not client.last_zxid:
            return math.inf
        return self._changed_at + self._timeout

    def _new_client(self) -> KazooClient:
        client = self._client = new_client(self.settings)
        on_session_timeout(client, partial(setattr, self, "_timeout"))
        client.add_listener(partial(self._changed, client))
        client.start_async()
        return client

    # In a thread of kazoo.

    def _answered(self, batch: RequestBatch) -> None:
        self._unanswered.pop(batch, None)
        if batch.is_proof and batch.is_answered and batch.generation == self.generation:
            certain = batch.sent + self._timeout * _CERTAIN
            self._certain_until = max(self._certain_until, certain)

    def _changed(self, client: KazooClient, state: str) -> None:
        if client != self._client:
            return  # it was stopped
        self.is_connected = state == KazooState.CONNECTED
        if state == KazooState.LOST:
            lost = client.client_state
            self._certain_until = -math.inf
            self.generation += 1
            self.held.clear()
            self._unsent.clear()
            self.reason = "the session was lost"
            if lost == KeeperState.AUTH_FAILED:
                self.reason = "the servers refuse the credentials"
            if lost != KeeperState.EXPIRED_SESSION:  # kazoo gives up
                self._replaced_at = self.clock() + _AGAIN
        elif state == KazooState.SUSPENDED:
            self.reason = "the connection was lost"
        self._beats_at, self._changed_at = 0.0, self.clock()
        self.look()
        if self._up is not self.is_connected and not self._closed:
            self._up = self.is_connected
            self._notice(self.settings.ensemble, self._up, "" if self._up else self.reason)
