"""The survey of masters in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from redlock_django.backends.memory.master import MemoryMaster
from redlock_django.engine.inspection.health import Health
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.query import Answer as QueryAnswer
from redlock_django.engine.protocol.query import Query, SendQuery
from redlock_django.wire.clock import wall_ns
from redlock_django.wire.servers.survey import Answer, Survey


class SurveyedBackend(Protocol):
    """The parts of a MemoryBackend that a survey reads."""

    deployment: Deployment
    masters: list[MemoryMaster]
    down: list[Any]
    passed: ClassVar[float]

    def _ready_in(self, index: int) -> float: ...


class MemorySurvey(Survey):
    """Asks the masters of a MemoryBackend; those that are down stay silent."""

    def __init__(self, backend: SurveyedBackend) -> None:
        super().__init__((), backend.deployment, 0.0)
        self._backend = backend

    def ask(
        self, work: Callable[[SendQuery], Answer], within: float | None = None
    ) -> dict[int, Answer]:
        return {index: work(_sender(master)) for index, master in self._up().items()}

    def health(self) -> dict[int, Health]:
        return {index: self._health(index, master) for index, master in self._up().items()}

    def _health(self, index: int, master: MemoryMaster) -> Health:
        keyspace = master.keyspace
        return Health(
            run_id=master.run_id,
            latency=0.0,
            offset=keyspace.time() / 1e6 - wall_ns() / 1e9 - self._backend.passed,
            server="memory",
            version="",
            uptime=0.0,
            policy="noeviction",
            maxmemory=0,
            persistent=False,
            held=len(keyspace.still_held(self.deployment.held, keyspace.time() // 1000)),
            ready_in=self._backend._ready_in(index),
            deployment=self.deployment.fingerprint,
            forbidden=(),
            faults=(),
        )

    def _up(self) -> dict[int, MemoryMaster]:
        for index, down in enumerate(self._backend.down):
            if down:
                self.silent[index] = reason(down)
        masters = enumerate(self._backend.masters)
        return {index: master for index, master in masters if index not in self.silent}


def reason(down: object) -> str:
    """Return why a master is down: the reason it was given, which may be just True."""
    return down if isinstance(down, str) else "down"


def _sender(master: MemoryMaster) -> SendQuery:
    def send(query: Query[QueryAnswer], /) -> QueryAnswer:
        return query.read(master.eval(query.name, query.keys(), [0, *query.arguments()])[1:])

    return send
