"""Send queries to all masters at once, on connections of their own.

Inspection may ask for a lot, and must not delay a lock. Each master has a connection and a thread
of its own, so a master that hangs delays no other.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from redlock_django.engine.inspection.faults import Fault, fault
from redlock_django.engine.inspection.health import Health
from redlock_django.engine.inspection.queries import MasterFacts, ReadFacts
from redlock_django.engine.protocol.commands import script
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.query import SendQuery
from redlock_django.engine.protocol.trust_marker import read_marker
from redlock_django.wire.clock import clock
from redlock_django.wire.servers.acl import LOCKS, WAITING, forbidden
from redlock_django.wire.servers.address import Address
from redlock_django.wire.servers.error_replies import explain
from redlock_django.wire.servers.info import faults, goes_on_alone, run_of
from redlock_django.wire.servers.probe import ErrorReply, Probe, Words
from redlock_django.wire.servers.trust import Unfit, ready_in

Answer = TypeVar("Answer")

LOOKING = 1 / 4
"""The part of the time for an answer in which a master that is not trusted is looked through for a
lock: if all of it were used, the master would count as one that did not answer."""


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
        self._probes: dict[int, Probe] = {}
        self._closed = threading.Event()

    def close(self) -> None:
        """Close the connections."""
        self._closed.set()
        for index, probe in self._probes.items():
            if index not in self.silent:  # otherwise its thread may be using it, and closes it
                probe.close()

    def ask(
        self, work: Callable[[SendQuery], Answer], within: float | None = None
    ) -> dict[int, Answer]:
        """Return the answers of the masters that gave one within so many seconds, by index.

        `work` runs once for each master, in a thread of its own, with a function that sends a
        query to that master. `within` is `timeout` if left out.
        """
        return self._each(lambda probe: work(probe.run), within)

    def health(self) -> dict[int, Health]:
        """Return what each master that answers reports of itself, by index."""
        looking = self.timeout * LOOKING
        return self._each(lambda probe: _health(probe, self.deployment, looking), None)

    def _each(self, work: Callable[[Probe], Answer], within: float | None) -> dict[int, Answer]:
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
        heard: dict[int, Answer | Unfit] = {}
        while len(heard) < len(asked):
            try:
                index, answer = done.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            heard[index] = answer
        answers: dict[int, Answer] = {}
        late = Unfit(f"did not answer within {allowed:g} s")
        for index in asked:
            answer = heard.get(index, late)
            if not isinstance(answer, Unfit):
                answers[index] = answer
                continue
            self.silent[index] = str(answer)
            if isinstance(answer, ErrorReply) and forbidden(answer.reply):
                self.forbidden.add(index)
        return answers

    def _one(
        self,
        index: int,
        work: Callable[[Probe], Answer],
        done: queue.SimpleQueue[tuple[int, Answer | Unfit]],
    ) -> None:
        probe = self._probes.get(index)
        try:
            if probe is None:
                probe = self._probes[index] = Probe(self._addresses[index], self.timeout)
            done.put((index, work(probe)))
        except Unfit as error:
            done.put((index, error))
        except Exception as error:  # noqa: BLE001 - a traceback of this thread would help nobody
            done.put((index, Unfit(f"could not be asked: {type(error).__name__}")))
        else:
            if not (self._closed.is_set() or index in self.silent):  # `close` skips the silent ones
                return
        if probe is not None:
            probe.close()


def _health(probe: Probe, deployment: Deployment, looking: float) -> Health:
    info = probe.info()
    sent, wall = clock(), time.time()
    now = probe.time() / 1_000_000
    latency = clock() - sent
    found = list(faults(info))
    try:
        facts = _facts(probe, deployment)
    except ErrorReply:
        if not found:
            raise
        facts = MasterFacts()  # INFO says why it runs no script: a cluster node, a lost replica
    known = read_marker(facts.marker)
    if facts.time and "get" not in facts.errors:
        left = ready_in(known, run_of(info), facts.time)
    else:
        left = 0.0  # not known: another fault says why the master is not counted
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
        ready_in=left,
        restarted=known is not None and left is None,
        key="" if left == 0 else _key(probe, deployment, looking),
        deployment="" if known is None else known.deployment,
        forbidden=facts.forbidden,
        faults=(*found, *_refused(facts.errors)),
        goes_on_alone=goes_on_alone(info),
    )


def _facts(probe: Probe, deployment: Deployment) -> MasterFacts:
    query = ReadFacts(deployment=deployment)
    # With the three commands by which locks and inspection run scripts: the ACL must allow all.
    loaded: Words = ("SCRIPT", "LOAD", script(query.name, deployment)[0])
    return probe.run(query, loaded, ("EVAL", "return 1", 0), text=False)


def _key(probe: Probe, deployment: Deployment, within: float) -> str:
    """Return a lock or a fence that a master stores, as far as it is found in so many seconds."""
    try:
        return probe.stored_key(deployment, within)
    except ErrorReply:  # SCAN is forbidden or renamed
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
