"""The survey of masters in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from redlock_django.backends.memory_keyspace import Argument
from redlock_django.backends.memory_master import MemoryMaster
from redlock_django.wire.clock import wall_ns
from redlock_django.wire.survey import Answer, Health, Say, Survey

if TYPE_CHECKING:
    from redlock_django.backends.memory import MemoryBackend


class MemorySurvey(Survey):
    """A look at the masters of this process."""

    def __init__(self, backends: Sequence[MemoryBackend]) -> None:
        super().__init__((), backends[0].deployment, 0.0)
        self._every = [
            (backend, own) for backend in backends for own in range(backend.deployment.masters)
        ]

    def ask(self, what: Callable[[Say], Answer], within: float | None = None) -> dict[int, Answer]:
        return {index: what(_sayer(backend.masters[own])) for index, backend, own in self._up()}

    def health(self) -> dict[int, Health]:
        return {
            index: Health(
                run_id=backend.masters[own].run_id,
                latency=0.0,
                offset=backend.masters[own].time() / 1e6 - wall_ns() / 1e9 - backend.passed,
                server="memory",
                version="",
                uptime=0.0,
                policy="noeviction",
                maxmemory=0,
                persistent=False,
                held=len(backend.masters[own].sets.get(self.deployment.held, ())),
                ready_in=backend._ready_in(own),
                deployment=self.deployment.fingerprint,
                forbidden=(),
                faults=(),
            )
            for index, backend, own in self._up()
        }

    def _up(self) -> list[tuple[int, MemoryBackend, int]]:
        for index, (backend, own) in enumerate(self._every):
            if down := backend.down[own]:
                self.silent[index] = reason(down)
        return [(index, *one) for index, one in enumerate(self._every) if index not in self.silent]


def reason(down: object) -> str:
    return down if isinstance(down, str) else "down"


def _sayer(master: MemoryMaster) -> Say:
    def say(name: str, keys: Sequence[str], argv: Sequence[Argument]) -> list[Any]:
        return list(master.eval(name, list(keys), [0, *argv]))[1:]

    return say
