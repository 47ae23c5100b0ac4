"""The queries of inspection that are sent to a master, and the meaning of each answer.

What they have in common is `protocol.query`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from redlock_django.engine.inspection.holders import holder_of, is_ours, limit_of
from redlock_django.engine.protocol.commands import Release, decode, decode_list
from redlock_django.engine.protocol.query import Query
from redlock_django.engine.protocol.slots import slot_of
from redlock_django.engine.protocol.votes import Vote


class HeldPage(NamedTuple):
    """How many locks a master's index lists, and the names of the first of them to expire."""

    held: int
    names: Sequence[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListHeld(Query[HeldPage]):
    """List the first `most` resources of the index to expire."""

    name: ClassVar[str] = "held"

    most: int

    def keys(self) -> list[str]:
        return [self.deployment.held]

    def arguments(self) -> list[str | int | bytes]:
        return [self.most]

    def read(self, reply: Any) -> HeldPage:
        _, (held, *names) = decode_list(reply)
        return HeldPage(held, names)


class StoredLock(NamedTuple):
    """The value of a lock key on one master, its seconds left (None: it never expires), and how
    many clients wait in its queue.
    """

    value: bytes
    ttl: float | None
    waiters: int = 0

    def __repr__(self) -> str:  # without the value, which holds the token
        return f"StoredLock(ttl={self.ttl})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLocks(Query[list[StoredLock | None]]):
    """Read the lock key of each resource, whichever client has set it; None where it is free."""

    name: ClassVar[str] = "look"

    resources: tuple[str, ...]

    def keys(self) -> list[str]:
        locks = [self.deployment.lock(resource) for resource in self.resources]
        return [*locks, *(self.deployment.queue(resource) for resource in self.resources)]

    def read(self, reply: Any) -> list[StoredLock | None]:
        _, stored = decode_list(reply)
        if len(stored) != 3 * len(self.resources):
            raise ValueError("an answer to another question")
        return [
            None if value is None else StoredLock(value, None if left < 0 else left / 1000, waiters)
            for value, left, waiters in zip(stored[::3], stored[1::3], stored[2::3], strict=True)
        ]


class MasterFacts(NamedTuple):
    """A master's marker (None: it has none), how many locks it lists (None: its ACL hides it), and
    the commands that its ACL forbids to scripts.

    `errors` has the error reply of each other command that fails in scripts, by its name. `time` is
    that of its clock, in µs.
    """

    marker: bytes | None = None
    held: int | None = None
    forbidden: tuple[str, ...] = ()
    errors: Mapping[str, str] = MappingProxyType({})
    time: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFacts(Query[MasterFacts]):
    """Read a master's marker, how many locks it lists and which commands fail; changes nothing."""

    name: ClassVar[str] = "health"

    def keys(self) -> list[str]:
        deployment = self.deployment
        nobodys = (deployment.lock(""), deployment.fence(""), deployment.tomb(""))
        return [deployment.marker, deployment.held, *nobodys]

    def arguments(self) -> list[str | int | bytes]:
        return [self.deployment.wake("")]

    def read(self, reply: Any) -> MasterFacts:
        head, (marker, held, *failed) = decode_list(reply)
        pairs = (each.decode(errors="replace").partition(" ") for each in failed)
        errors = {command: error for command, _, error in pairs}
        forbidden = tuple(command for command, error in errors.items() if not error)
        return MasterFacts(
            marker,
            held,
            forbidden,
            {name: each for name, each in errors.items() if each},
            head.time,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForceRelease(Query[Vote]):
    """Delete a lock that has exactly this value, and bury its token if it is one of ours.

    The value of another client's lock may be any bytes, and no token of it is known.
    """

    name: ClassVar[str] = "release"

    resource: str
    value: bytes = field(repr=False)  # holds the token

    def keys(self) -> list[str]:
        return self._command().keys()

    def arguments(self) -> list[str | int | bytes]:
        return [self.value, *self._command().arguments()[1:]]

    def read(self, reply: Any) -> Vote:
        return self._command().vote(*decode(reply)[1:])

    def _command(self) -> Release:
        ours = is_ours(self.value)
        return Release(
            deployment=self.deployment,
            resources=(self.resource,),
            value=self.value[:32].decode() if ours else "-",
            bury=ours,
            limit=max(limit_of(holder_of(self.value)) or 1, slot_of(self.resource) + 1),
        )


QUERIES: tuple[type[Query[Any]], ...] = (
    ListHeld, ReadLocks, ReadFacts, ForceRelease,
)  # fmt: skip
