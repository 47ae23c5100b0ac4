"""The marker of a master, and the query that asks whether the master may be trusted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from redlock_django.engine.protocol.commands import Reply, decode
from redlock_django.engine.protocol.query import Query
from redlock_django.engine.protocol.statuses import Status

_MARKER = re.compile(rb"([0-9a-fA-F]+) (\d+) (\S+)")  # bytes: what is a blank is as in join.lua


class Marker(NamedTuple):
    """A master's marker: the run_id that it is valid for, and the time of trust (µs)."""

    run_id: str
    ready_at: int
    deployment: str


def read_marker(text: bytes | None) -> Marker | None:
    """Read a marker; return None if there is none or it is not a marker of this package."""
    if (match := _MARKER.fullmatch(text or b"")) is None:
        return None
    return Marker(match[1].decode(), int(match[2]), match[3].decode(errors="replace"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Query[Reply]):
    """Ask whether a master may be trusted, and write its marker where that may be done.

    The reply has the marker that the master has now.

    `mode` is "join", "mark" (write a marker where there is none, too), "distrust" (its clock
    stepped), "trust" (at once) or "reconfigure" (replace the marker of another deployment).
    `fingerprint` is the deployment's fingerprint for the marker, and `delay` (µs) is the time until
    the master is trusted; None selects those of `deployment`.
    """

    name: ClassVar[str] = "join"

    run_id: str
    mode: str
    fingerprint: str | None = None
    delay: int | None = None

    def keys(self) -> list[str]:
        return [self.deployment.marker]

    def arguments(self) -> list[str | int | bytes]:
        fingerprint, delay = self.fingerprint, self.delay
        if fingerprint is None:
            fingerprint = self.deployment.fingerprint
        if delay is None:
            delay = round(self.deployment.restart_delay * 1_000_000)
        return [self.run_id, fingerprint, delay, self.mode]

    def read(self, reply: Any) -> Reply:
        decoded = decode(reply)
        if (decoded.status == Status.UNMARKED) != (read_marker(decoded.rest) is None):
            raise ValueError("not a marker")
        return decoded
