"""The faults of servers: the code of each, a sentence about the server, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class FaultKind(NamedTuple):
    """A kind of fault: the rest of a sentence that begins with the server, and what to do.

    Both may have the facts of one server as placeholders. A server with a fault that `counts` is
    counted all the same.
    """

    sentence: str
    remedy: str
    counts: bool = False


_POLICY = "set maxmemory-policy to noeviction"

FAULTS: Mapping[str, FaultKind] = {
    "unreachable": FaultKind(
        "{why}", "start it, or repair its address, its password or the network"
    ),
    "loading": FaultKind("is still loading its data", "wait until it has loaded them"),
    "untrusted": FaultKind("{why}", "wait: it may have forgotten locks, which expire until then"),
    "version": FaultKind(
        "its version {version} is too old", "install Redis 5, Valkey 7.2 or newer"
    ),
    "run_id": FaultKind(
        "reports no {field} in INFO, without which no {event} is noticed",
        "use Redis 5, Valkey 7.2 or newer, and no proxy that changes INFO",
    ),
    "sentinel": FaultKind(
        "is a Sentinel",
        "name it in SENTINELS, and its service in MASTERS, with PROFILE 'failover'",
    ),
    "cluster": FaultKind("is a cluster node", "use an independent master instead"),
    "replica": FaultKind("is a replica of {master}", "MASTERS must lead to that master instead"),
    "twin": FaultKind("is the same server as {twins}, so none of them is counted", "list it once"),
    "eviction": FaultKind("may evict locks (maxmemory-policy {policy})", _POLICY),
    "clock": FaultKind(
        "its clock is {off:+.1f} s off the other masters'",
        "synchronize the clocks of all servers with NTP, slewing rather than stepping",
    ),
    "deployment": FaultKind(
        "belongs to another deployment: its marker says {marker!r}, this alias {alias!r}",
        "use the same settings in all processes; after a planned change, run 'manage.py "
        "redlock_init --reconfigure'",
    ),
    "conflict": FaultKind(
        "is asked for no lock, because {other} belongs to another deployment",
        "repair that server",
    ),
    "acl": FaultKind("{why}", "grant its user {rights} (docs/reference/acl.md)"),
    "errors": FaultKind(
        "{why}", "repair it: no lock is acquired there until it runs these commands"
    ),
    "policy": FaultKind(
        "would evict locks if it had a maxmemory (maxmemory-policy {policy})", _POLICY, counts=True
    ),
    "cache": FaultKind(
        "clearing the cache {caches} empties it", "give locks servers of their own", counts=True
    ),
    "waiting": FaultKind(
        "{why}: it cannot wake waiters",
        "allow these commands (docs/reference/acl.md); until then, waiters poll",
        counts=True,
    ),
    "alone": FaultKind(
        "would go on beside a promoted replica",
        "set min-replicas-to-write to 1 on it",
        counts=True,
    ),
}
"""Every kind of fault, by its code. `conflict` follows from the `deployment` of another server."""


class Fault(NamedTuple):
    """A fault of one server. Its string is the rest of a sentence that begins with the server."""

    code: str
    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.text}: {self.remedy}"


def fault(code: str, **facts: object) -> Fault:
    """Return a fault of a server, with these facts for the placeholders of its kind."""
    kind = FAULTS[code]
    return Fault(code, kind.sentence.format(**facts), kind.remedy.format(**facts))
