"""Send queries to all masters at once, on connections of their own.

Inspection may ask for a lot, and must not delay a lock. Each master has a connection and a thread
of its own, so a master that hangs delays no other.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from redis.exceptions import RedisError, ResponseError

from redlock_django.engine.inspection.faults import Fault, fault
from redlock_django.engine.inspection.health import Health
from redlock_django.engine.inspection.queries import MasterFacts, ReadFacts
from redlock_django.engine.protocol.commands import as_array, script
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.query import Answer as QueryAnswer
from redlock_django.engine.protocol.query import Query, SendQuery
from redlock_django.engine.protocol.trust_marker import Marker, read_marker
from redlock_django.wire.clock import clock
from redlock_django.wire.servers.acl import LOCKS, WAITING, forbidden
from redlock_django.wire.servers.address import Address
from redlock_django.wire.servers.error_replies import explain, reply_text
from redlock_django.wire.servers.handshake import (
    NOT_REDIS,
    ask,
    ask_info,
    describe,
    prepare,
)
from redlock_django.wire.servers.info import faults, goes_on_alone, run_of
from redlock_django.wire.servers.trust import Unfit
from redlock_django.wire.servers.trust_declaration import stored_key

Answer = TypeVar("Answer")

LOOKING = 1 / 4
"""The part of the time for an answer in which a master that is not trusted is looked through for a
lock: if all of it were used, the master would count as one that did not answer."""


class _Forbidden(Unfit):
    """The ACL of the master forbids the query."""


class Survey:
    """Sends queries to all masters, on connections that `close` closes.

    `silent` maps the index of each master that could not be asked to the reason; it is not asked
    again. `forbidden` has those whose ACL is the reason. `timeout` in seconds, for each step of
    connecting and for each answer.
    """

    def __init__(
        self, addresses: Sequence[Address], deployment: Deployment, timeout: float
    ) -> None:
        self.deployment = deployment
        self.timeout = timeout
        self.silent: dict[int, str] = {}
        self.forbidden: set[int] = set()
        self._addresses = addresses
        self._connections: dict[int, Any] = {}
        self._closed = threading.Event()

    def close(self) -> None:
        """Close the connections."""
        self._closed.set()
        for index, connection in self._connections.items():
            if index not in self.silent:  # otherwise its thread may be using it, and closes it
                connection.disconnect()

    def ask(
        self, work: Callable[[SendQuery], Answer], within: float | None = None
    ) -> dict[int, Answer]:
        """Return the answers of the masters that gave one within so many seconds, by index.

        `work` runs once for each master, in a thread of its own, with a function that sends a
        query to that master. `within` is `timeout` if left out.
        """
        return self._each(lambda connection: work(_sender(connection)), within)

    def health(self) -> dict[int, Health]:
        """Return what each master that answers reports of itself, by index."""
        looking = self.timeout * LOOKING
        return self._each(lambda connection: _health(connection, self.deployment, looking), None)

    def _each(self, work: Callable[[Any], Answer], within: float | None) -> dict[int, Answer]:
        done: queue.SimpleQueue[tuple[int, Answer | Unfit]] = queue.SimpleQueue()
        asked = [index for index in range(len(self._addresses)) if index not in self.silent]
        for index in asked:
            threading.Thread(
                target=self._one,
                args=(index, work, done),
                name=f"redlock-survey-{self._addresses[index].name}",
                daemon=True,
            ).start()
        allowed = self.timeout if within is None else within
        deadline = time.monotonic() + allowed
        answers: dict[int, Answer] = {}
        heard: set[int] = set()
        while len(heard) < len(asked):
            try:
                index, answer = done.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            heard.add(index)
            if isinstance(answer, Unfit):
                self.silent[index] = str(answer)
                if isinstance(answer, _Forbidden):
                    self.forbidden.add(index)
            else:
                answers[index] = answer
        for index in set(asked) - heard:
            self.silent[index] = f"did not answer within {allowed:g} s"
        return dict(sorted(answers.items()))

    def _one(
        self,
        index: int,
        work: Callable[[Any], Answer],
        done: queue.SimpleQueue[tuple[int, Answer | Unfit]],
    ) -> None:
        connection = None
        try:
            connection = self._connections.get(index)
            if connection is None:
                connection = prepare(self._addresses[index], self.timeout)
                connection.connect()
                self._connections[index] = connection
            done.put((index, work(connection)))
        except Unfit as error:
            done.put((index, error))
        except (RedisError, OSError) as error:
            kind = _Forbidden if forbidden(reply_text(error)) else Unfit
            done.put((index, kind(describe(error, self.timeout))))
        except Exception as error:  # noqa: BLE001 - a traceback of this thread would help nobody
            done.put((index, Unfit(f"could not be asked: {type(error).__name__}")))
        else:
            if not self._closed.is_set():
                return
        if connection is not None:
            connection.disconnect()


def _sender(connection: Any) -> SendQuery:
    def send(query: Query[QueryAnswer], /) -> QueryAnswer:
        return _read(query, ask(connection, query.call(text=True))[0])

    return send


def _read(query: Query[QueryAnswer], reply: Any) -> QueryAnswer:
    """Return what a query reads in a reply. Raises Unfit if no script has written the reply."""
    try:
        return query.read(as_array(reply)[1:])
    except (ValueError, TypeError, LookupError, AttributeError):
        raise Unfit(NOT_REDIS) from None


def _health(connection: Any, deployment: Deployment, looking: float) -> Health:
    info = ask_info(connection)
    sent, wall = clock(), time.time()
    (seconds, micros) = ask(connection, ("TIME",))[0]
    latency = clock() - sent
    now = int(seconds) + int(micros) / 1_000_000
    found = list(faults(info))
    try:
        facts = _facts(connection, deployment)
    except ResponseError:
        if not found:
            raise
        facts = MasterFacts()  # INFO says why it runs no script: a cluster node, a lost replica
    known = read_marker(facts.marker)
    ready_in = _ready_in(known, run_of(info), facts)
    return Health(
        run_id=run_of(info),
        latency=latency,
        offset=now - wall - latency / 2,
        server="Valkey" if "valkey_version" in info else "Redis",
        version=info.get("valkey_version") or info.get("redis_version", "?"),
        uptime=float(info.get("uptime_in_seconds", 0)),
        policy=info.get("maxmemory_policy", "noeviction"),
        maxmemory=int(info.get("maxmemory", 0)),
        persistent=info.get("aof_enabled", "0") == "1",
        held=facts.held,
        ready_in=ready_in,
        restarted=known is not None and ready_in is None,
        key="" if ready_in == 0 else _key(connection, deployment, looking),
        deployment="" if known is None else known.deployment,
        forbidden=facts.forbidden,
        faults=(*found, *_refused(facts.errors)),
        goes_on_alone=goes_on_alone(info),
    )


def _facts(connection: Any, deployment: Deployment) -> MasterFacts:
    query = ReadFacts(deployment=deployment)
    # With the three commands by which locks and inspection run scripts: the ACL must allow all.
    _, _, reply = ask(
        connection,
        ("SCRIPT", "LOAD", script(query.name)[0]),
        ("EVAL", "return 1", 0),
        query.call(),
    )
    return _read(query, reply)


def _ready_in(known: Marker | None, run_id: str, facts: MasterFacts) -> float | None:
    """Return the seconds until the marker of this run is trusted; None if it has none."""
    if not facts.time or "get" in facts.errors:
        return 0.0  # not known: another fault says why the master is not counted
    if known is None or known.run_id != run_id:
        return None
    return max(0, known.ready_at - facts.time) / 1_000_000


def _key(connection: Any, deployment: Deployment, within: float) -> str:
    """Return a lock or a fence that a master stores, as far as it is found in so many seconds."""
    try:
        return stored_key(connection, deployment, within)
    except ResponseError:  # SCAN is forbidden or renamed
        return ""


def _refused(errors: Mapping[str, str]) -> Iterator[Fault]:
    """Yield a fault for each kind of error that commands in scripts end with."""
    reported: set[str] = set()  # an error of commands of several kinds is yielded once
    for code, needed in (("errors", LOCKS), ("waiting", WAITING)):
        kinds: dict[str, list[str]] = {}
        for command in errors.keys() & {*needed}:
            kinds.setdefault(explain(errors[command]), []).append(command)
        for why in kinds.keys() - reported:
            yield fault(code, why=f"{why}, asked for {', '.join(sorted(kinds[why]))}")
        reported |= kinds.keys()
