"""What a server reports of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What one server reports of itself.

    `run_id` identifies one life of the server process. `latency`, `uptime` and `ready_in` are in
    seconds; `offset` is the server's clock minus ours, in seconds. `held` is None where the ACL
    hides it. `ready_in` is 0 where the server is trusted, None where it has no marker.
    `deployment` is the fingerprint in its marker, "" without one. `forbidden` are the commands of
    `wire.acl` that its ACL forbids. `faults` are pairs of a code and a text, as `wire.join.faults`
    gives them.
    """

    run_id: str
    latency: float
    offset: float
    server: str
    version: str
    uptime: float
    policy: str
    maxmemory: int
    persistent: bool
    held: int | None
    ready_in: float | None
    deployment: str
    forbidden: tuple[str, ...]
    faults: tuple[tuple[str, str], ...]
