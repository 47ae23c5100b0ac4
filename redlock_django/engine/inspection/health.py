"""The health report of a server."""

from __future__ import annotations

from dataclasses import dataclass

from redlock_django.engine.inspection.faults import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The report of one server on itself; a store leaves out what it does not know.

    `server` is the product ("Redis"). `run_id` identifies one life of the server process, "" if
    unknown. `latency`, `uptime` and `ready_in` are in seconds; `offset` is the server's clock minus
    ours, in seconds. `policy` and `maxmemory` (bytes) describe what the server does when its memory
    is full. `held` is the number of locks it lists, None if it does not report it. `ready_in` is 0
    where the server is trusted, None where it has no marker of this run; `restarted` is whether it
    has that of another run. `key` is a lock or a fence that it stores, "" if none was found or the
    server is trusted. `deployment` is the fingerprint in its marker, "" without one. `forbidden`
    are the commands of `wire.servers.acl` that its ACL forbids.
    `goes_on_alone` is whether it accepts writes when it is cut off from its replicas.
    """

    server: str
    run_id: str = ""
    latency: float = 0.0
    offset: float = 0.0
    version: str = ""
    uptime: float = 0.0
    policy: str = ""
    maxmemory: int = 0
    persistent: bool = False
    held: int | None = None
    ready_in: float | None = 0.0
    restarted: bool = False
    key: str = ""
    deployment: str = ""
    forbidden: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    goes_on_alone: bool = False
