"""The results of an inspection: held locks, a forced release, the health of servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from redlock_django.engine.inspection.faults import Fault, fault
from redlock_django.engine.inspection.health import Health
from redlock_django.engine.inspection.holders import Holding, label_of, slot_in
from redlock_django.engine.protocol.slots import name_of
from redlock_django.engine.quorum import quorum


class SlotsHeld(NamedTuple):
    """How many slots of a name are held, and the limits that their holders state, in order.

    A client without a limit states 1. There are several limits while a new one is deployed, or
    where two places of the code disagree.
    """

    held: int
    limits: tuple[int, ...]

    @classmethod
    def of(cls, slots: Sequence[Holding]) -> SlotsHeld:
        """Return the numbers of these slots of one name."""
        held = [one for one in slots if one.has_quorum]
        limits = {one.limit or 1 for one in held if one.holder}  # a foreign holder states none
        return cls(len(held), tuple(sorted(limits)))

    def __str__(self) -> str:
        return f"{self.held}/{max(self.limits, default='?')}"


@dataclass(frozen=True, kw_only=True)
class HeldLocks:
    """Locks that are held now: a page of them, or those on some resources.

    `count` is how many there are on all pages. `servers` are the names of all servers, `silent`
    maps those that could not be asked to the reason. `complete` is whether a quorum answered, so
    that no held lock can be missing; `truncated` whether more locks are held than
    `Inspection.MAX_LISTED`, of which those that expire first were read. `slots` has the numbers of
    each name with a limit, also of slots that are not among `locks`. All slots of a name have the
    same waiters, which only the first of them here has.
    """

    using: str
    locks: tuple[Holding, ...]
    servers: tuple[str, ...]
    silent: Mapping[str, str]
    complete: bool
    count: int
    truncated: bool = False
    slots: Mapping[str, SlotsHeld] = field(default_factory=dict)


class ReleaseOutcome(Enum):
    """The outcome of a forced release."""

    RELEASED = "released"
    NOT_HELD = "not held"
    CHANGED = "changed"  # another holder has it now
    NO_QUORUM = "no quorum"  # too few servers answered: it may still be held


@dataclass(frozen=True, kw_only=True)
class Freed:
    """The result of a forced release.

    `fingerprint` and `holder` are of the lock that the store tried to free; "" and empty where it
    tried none, because the wanted lock is not there. `now` is the fingerprint of the lock that is
    held instead, if CHANGED. `masters` maps the servers that decide about the resource to what each
    of them answered, or why it did not; where the store tried nothing, only the silent ones.
    """

    resource: str
    using: str
    outcome: ReleaseOutcome
    fingerprint: str = ""
    holder: Mapping[str, str | int | float] = field(default_factory=dict)
    now: str = ""
    masters: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name that was to be freed, of which `slot` is one slot if it has a limit."""
        return name_of(self.resource)

    @property
    def slot(self) -> int | None:
        """The number of the slot that was to be freed; None for a lock."""
        return slot_in(self.resource, self.holder)

    @property
    def label(self) -> str:
        """The name for people: "export, slot 1" for a slot."""
        return label_of(self.resource, self.holder)


@dataclass(frozen=True, kw_only=True)
class ServerHealth:
    """The health of one server; where it did not answer, `health` is None, and `reason` is why.

    `counted` is whether its votes count now.
    """

    name: str
    health: Health | None
    reason: str
    faults: tuple[Fault, ...]
    counted: bool

    @classmethod
    def of(cls, name: str, health: Health | None, reason: str = "") -> ServerHealth:
        """Return the health of a server that is silent (no `health`) or, for a reason, untrusted.

        Without a reason, a server that answered has no fault.
        """
        code = "unreachable" if health is None else "untrusted"
        faults = (fault(code, why=reason),) if reason or health is None else ()
        silent = reason if health is None else ""
        return cls(name=name, health=health, reason=silent, faults=faults, counted=not faults)


class QuorumHealth(NamedTuple):
    """The number of `servers`, how many of them are `counted`, and how many are `needed`."""

    servers: int
    counted: int
    needed: int

    @classmethod
    def of(cls, servers: Sequence[ServerHealth]) -> QuorumHealth:
        """Return how far all servers of an alias are from a quorum."""
        many = len(servers)
        return cls(many, sum(server.counted for server in servers), quorum(many))

    @property
    def is_reached(self) -> bool:
        """True if locks can be acquired."""
        return self.counted >= self.needed


class Listing(NamedTuple):
    """Names of resources that are held, and whether there are more than could be listed."""

    names: Sequence[str]
    truncated: bool = False
