"""Which deployment the masters of an alias belong to, as their markers show.

A marker names the deployment by its fingerprint, which contains the identity of the list of
masters: clients with another list are another deployment. Two deployments that share masters must
not both find a majority. So

- a client writes its marker on a master without one only if a quorum of the masters has this
  deployment's marker, or if every master of the alias answers and none has the marker of another
  deployment;
- a client that has met a master of another deployment acquires nothing.

docs/explanation/how-it-is-tested.md states which cases this does not cover.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol
from weakref import WeakSet

from redlock_django.engine.protocol.deployment import Deployment, numbers_of
from redlock_django.engine.quorum import quorum

NEW = "new: run 'manage.py redlock_init'"
"""The reason for a master without a marker if no master of the alias is trusted."""

RECENT = 1.5
"""Seconds for which a marker that was read counts as evidence for another master."""


class Sight(NamedTuple):
    """A master's marker as it was read at `when`: the deployment's fingerprint, "" if none.

    `bound` is whether the marker was written for the run of the server that has it.
    """

    when: float
    run_id: str
    fingerprint: str
    bound: bool


class Reader(Protocol):
    """Links that can read the markers of their masters again."""

    def look_again(self) -> None:
        """Read them again, soon. Any thread may call this."""


class Membership:
    """The deployments that the masters of an alias belong to, as far as one process knows.

    All links of the process share it: those of threads and of event loops.
    `fingerprint` is the deployment that this process belongs to. `conflict` is the name of a master
    that belongs to another deployment, or "". From `trusted_from` on, in seconds, this process has
    seen a master that is trusted: the deployment is in use.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.fingerprint = deployment.fingerprint
        self.conflict = ""
        self.trusted_from = math.inf
        self._names = deployment.names
        self.readers: WeakSet[Reader] = WeakSet()
        self._seen: dict[str, Sight] = {}

    def saw(self, name: str, run_id: str, fingerprint: str, now: float, *, bound: bool) -> None:
        """Note the marker of a master, read at `now` in seconds; the fingerprint is "" if none."""
        self._seen[name] = Sight(now, run_id, fingerprint, bound)
        recent = [sight for one in self._names if (sight := self._recent(one, now))]
        if len(recent) == len(self._names):
            self.fingerprint = same_servers(self.fingerprint, recent)
        self.conflict = next((one for one in self._names if self._is_foreign(one)), "")

    def look_again(self) -> None:
        """Make all links of this process read the markers again, soon."""
        for reader in list(self.readers):
            reader.look_again()

    def may_mark(self, now: float) -> bool:
        """Return whether this process may write its marker on a master that has none."""
        return self._count(now) >= quorum(len(self._names)) or not self._missing(now)

    def why_unmarked(self, now: float) -> str:
        """Return why a master without a marker stays without one; for operators."""
        if self.conflict:
            return f"has no marker yet, because {self.conflict} belongs to another deployment"
        missing = self._missing(now)
        is_used = now >= self.trusted_from
        if not missing:
            return "new or emptied: has no marker yet" if is_used else NEW
        first = "new or emptied: not counted before" if is_used else f"{NEW} once"
        return (
            f"{first} {', '.join(missing)} can be asked (if a master is gone for good: replace it "
            "in MASTERS, then 'manage.py redlock_init --reconfigure')"
        )

    def why_foreign(self, fingerprint: str) -> str:
        """Return why a master with another deployment's marker is not counted; for operators."""
        if fingerprint == self.fingerprint:  # its marker was the last part of the proof
            return "has this deployment's marker under another name, and is asked again"
        return (
            f"its marker has {fingerprint!r}, this alias has {self.fingerprint!r}: every client of "
            "a master must have the same MASTERS, PROFILE, MAX_TTL, MAX_CLOCK_SKEW and "
            "RESTART_DELAY (after a planned change run 'manage.py redlock_init --reconfigure')"
        )

    def _missing(self, now: float) -> list[str]:
        """Return the masters that do not answer, or belong to another deployment."""
        return [
            name
            for name in self._names
            if self._recent(name, now) is None or self._is_foreign(name)
        ]

    def _count(self, now: float) -> int:
        """Return how many masters have this deployment's marker now."""
        sights = (self._recent(name, now) for name in self._names)
        return sum(1 for sight in sights if sight and sight.fingerprint == self.fingerprint)

    def _recent(self, name: str, now: float) -> Sight | None:
        sight = self._seen.get(name)
        return sight if sight is not None and abs(now - sight.when) <= RECENT else None

    def _is_foreign(self, name: str) -> bool:
        sight = self._seen.get(name)
        return sight is not None and sight.fingerprint not in ("", self.fingerprint)


def same_servers(fingerprint: str, sights: Sequence[Sight]) -> str:
    """Return the fingerprint of a client that has read the markers of all its masters.

    If all of them are different servers, and have one deployment's marker that differs from
    `fingerprint` in nothing but the names of the masters, then they are all the masters of that
    deployment, under other names (an IP address for a DNS name): the client belongs to it.
    Otherwise the client's own fingerprint is returned.
    """
    (other, *more) = {sight.fingerprint for sight in sights}
    servers = {sight.run_id for sight in sights}
    if (
        not more
        and len(servers) == len(sights)
        and all(sight.bound for sight in sights)
        and numbers_of(other) == numbers_of(fingerprint)
    ):
        return other
    return fingerprint
