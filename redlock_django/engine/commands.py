"""What can be said to a master, and what each answer means.

Every command is one Lua script of `lua/` (run by EVALSHA), its KEYS, its ARGV, and a
reading of its reply as a `Vote`. Every reply is an array that begins with the number of
the round, a status, and the master's clock in µs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import ClassVar

from redlock_django.engine.quorum import Ballot, Vote, failed, granted
from redlock_django.engine.rendezvous import identity

GRANTED = 1
REFUSED = 0
NOT_READY = -1  # the marker is absent, another's, or its time has not come
BURIED = -2  # a tombstone: this token was released before its acquire arrived
FENCE_AHEAD = -3  # a stored fence stands further ahead of the clock than any honest one
CORRUPT = -4  # a key of ours holds something that is not ours
ABSENT = -5  # extend: the master no longer has the lock
RESERVED = -7  # the lock is free, but somebody else's turn has come

UNCOUNTED = {
    NOT_READY: "not trusted yet",
    BURIED: "this token was released already",
    FENCE_AHEAD: "its fence is ahead of its clock",
    CORRUPT: "one of its keys holds something else (wrong type or not a number)",
}

QUEUED = ("acquire", "release")  # the scripts that begin with what queue.lua defines

Argument = str | int
Reply = Sequence[object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The masters, by name, and the numbers that every client of them must share.

    `max_ttl`, `max_clock_skew`, `restart_delay` and `fence_ttl` in seconds. Where there are
    several groups of masters, `groups` has the identity of each, and `group` is the place of
    this one among them.
    """

    names: tuple[str, ...]
    prefix: str = "redlock"
    max_ttl: float = 60.0
    max_clock_skew: float = 0.5
    restart_delay: float = 63.75
    fence_ttl: float = 600.0
    groups: tuple[str, ...] = ()
    group: int = 0

    @property
    def masters(self) -> int:
        """N: how many masters there are, up or not."""
        return len(self.names)

    @property
    def skew(self) -> int:
        """`max_clock_skew` in µs."""
        return round(self.max_clock_skew * 1_000_000)

    @property
    def fingerprint(self) -> str:
        """What stands in every marker, so that two deployments with other numbers notice."""
        # Two that have other groups look for the same resource in different places.
        groups = f",groups={identity(self.groups)[:16]}" if self.groups else ""
        return (
            f"n={self.masters},ttl={ms(self.max_ttl)},skew={ms(self.max_clock_skew)},"
            f"delay={ms(self.restart_delay)}{groups}"
        )

    @property
    def marker(self) -> str:
        """The key that says since when a master is trusted."""
        return f"{self.prefix}:master"

    @property
    def held(self) -> str:
        """The sorted set of the resources held on a master, by expiry in ms."""
        return f"{self.prefix}:held"

    def lock(self, resource: str) -> str:
        """The key of a lock."""
        return f"{self.prefix}:lock:{resource}"

    def fence(self, resource: str) -> str:
        """The key of a resource's fence counter."""
        return f"{self.prefix}:fence:{resource}"

    def queue(self, resource: str) -> str:
        """The sorted set of those who wait for a resource, by ticket."""
        return f"{self.prefix}:queue:{resource}"

    def wake(self, process: str) -> str:
        """The channel on which the waiters of a process are called."""
        return f"{self.prefix}:wake:{process}"

    def tomb(self, token: str) -> str:
        """The key that keeps a released token from coming back."""
        return f"{self.prefix}:tomb:{token}"


def ms(seconds: float) -> int:
    """Seconds as whole milliseconds."""
    return round(seconds * 1000)


@cache
def script(name: str) -> tuple[str, str]:
    """The Lua text of a command and its SHA-1, by which a master knows it."""
    parts = ("queue", name) if name in QUEUED else (name,)
    lua = files(__package__).joinpath("lua")
    text = "".join(lua.joinpath(f"{part}.lua").read_text(encoding="utf-8") for part in parts)
    return text, sha1(text.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One thing said to a master.

    `name` is the script. `trusted` commands carry the marker the client expects, and the
    time it is ready at, as their last two arguments: the link adds them, since they
    differ from master to master. `sets` is whether the command may leave the lock behind,
    `fenced` whether it is answered with the fence of each resource.
    """

    name: ClassVar[str]
    trusted: ClassVar[bool] = True
    sets: ClassVar[bool] = False
    fenced: ClassVar[bool] = False

    deployment: Deployment
    resources: tuple[str, ...]
    value: str = field(repr=False)  # holds the token

    @property
    def token(self) -> str:
        """The token this command is about."""
        return self.value.split(" ", 1)[0]

    def keys(self) -> list[str]:
        """The KEYS of the script."""
        raise NotImplementedError

    def arguments(self) -> list[Argument]:
        """The ARGV of the script, without the round's number and the marker."""
        raise NotImplementedError

    def _locks_and_fences(self) -> list[str]:
        deployment = self.deployment
        return [key for r in self.resources for key in (deployment.lock(r), deployment.fence(r))]

    def _queues(self) -> list[str]:
        return [self.deployment.queue(resource) for resource in self.resources]

    def vote(self, reply: Reply) -> Vote:
        """What a reply means. `reply` begins with the status: the round's number is off."""
        status, time = _integer(reply[0]), _integer(reply[1])
        if status == GRANTED:
            fences = tuple(map(_integer, reply[2:]))
            if len(fences) != (len(self.resources) if self.fenced else 0):
                raise ValueError(f"{len(fences)} fences for {len(self.resources)} resources")
            return granted(time, fences)
        if status in (REFUSED, RESERVED):
            return self._refusal(status, time, reply)
        if status == ABSENT:
            index = _integer(reply[2]) - 1
            return Vote(Ballot.REFUSED, "forgot the lock", time, resource=index, absent=True)
        return failed(UNCOUNTED[status], time=time)

    def _refusal(self, status: int, time: int, reply: Reply) -> Vote:
        index, ttl, fence, rival = reply[2:6]
        left = _integer(ttl)
        until = "with no expiry" if left < 0 else f"for {left / 1000:.3g} s"
        return Vote(
            Ballot.REFUSED,
            f"{'held by another' if status == REFUSED else 'the turn of a waiter'} {until}",
            time,
            fences=(_integer(fence),),
            ttl=left,
            rival=rival if isinstance(rival, bytes) else str(rival).encode(),
            resource=_integer(index) - 1,
            ahead=_integer(reply[6]) if len(reply) > 6 else -1,
        )


def _integer(value: object) -> int:
    if isinstance(value, int):
        return value
    raise ValueError(f"an integer was expected in a reply, not {type(value).__name__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquire(Command):
    """Take every resource or none. `ttl` in seconds, `proposal` in µs of the client's clock.

    A `waiter` (its name; "" for none) that is refused stands in the queue of the resource at
    fault from then on, by its `ticket`: what it proposed first. Granted, it has left.
    """

    name: ClassVar[str] = "acquire"
    sets: ClassVar[bool] = True
    fenced: ClassVar[bool] = True

    ttl: float
    proposal: int
    waiter: str = ""
    ticket: int = 0

    def keys(self) -> list[str]:
        deployment = self.deployment
        return [
            deployment.marker,
            deployment.held,
            deployment.tomb(self.token),
            *self._locks_and_fences(),
            *self._queues(),
        ]

    def arguments(self) -> list[Argument]:
        deployment = self.deployment
        return [
            self.value,
            ms(self.ttl),
            self.proposal,
            deployment.skew,
            ms(deployment.fence_ttl),
            ms(deployment.max_ttl),
            f"{self.ticket} {self.waiter}" if self.waiter else "",
            *self.resources,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirm(Command):
    """Raise the fences to `fences` where, and only where, the lock is still ours."""

    name: ClassVar[str] = "confirm"
    fenced: ClassVar[bool] = True

    fences: tuple[int, ...]

    def keys(self) -> list[str]:
        return [self.deployment.marker, *self._locks_and_fences()]

    def arguments(self) -> list[Argument]:
        return [self.value, self.deployment.skew, ms(self.deployment.fence_ttl), *self.fences]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extend(Command):
    """Let the lock live `ttl` seconds from now where it is still ours. Never re-creates it."""

    name: ClassVar[str] = "extend"

    ttl: float

    def keys(self) -> list[str]:
        deployment = self.deployment
        return [deployment.marker, deployment.held, *(deployment.lock(r) for r in self.resources)]

    def arguments(self) -> list[Argument]:
        return [self.value, ms(self.ttl), *self.resources]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heal(Command):
    """Give a held lock to a master that had forgotten it. Counts from the next extension."""

    name: ClassVar[str] = "heal"
    sets: ClassVar[bool] = True
    fenced: ClassVar[bool] = True

    ttl: float
    fences: tuple[int, ...]

    def keys(self) -> list[str]:
        deployment = self.deployment
        return [
            deployment.marker,
            deployment.held,
            deployment.tomb(self.token),
            *self._locks_and_fences(),
        ]

    def arguments(self) -> list[Argument]:
        deployment = self.deployment
        return [
            self.value,
            ms(self.ttl),
            deployment.skew,
            ms(deployment.fence_ttl),
            *self.resources,
            *self.fences,
        ]

    def vote(self, reply: Reply) -> Vote:
        # A lock set just now was absent until now: somebody else may have had this
        # master's vote in between, so it must not count in the round that sets it.
        vote = super(Heal, self).vote(reply)
        if vote.ballot is Ballot.GRANTED:
            return failed("healed: counts from the next extension", time=vote.time)
        return vote


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(Command):
    """Free the lock where it is ours, and call the first who waits for it.

    With `bury`, keep its token from coming back, too. With a `waiter`, that one leaves the
    queues. Without `calls` the queues stay as they are: who asks again goes on waiting.
    """

    name: ClassVar[str] = "release"
    trusted: ClassVar[bool] = False

    bury: bool = False
    waiter: str = ""
    calls: bool = True

    def keys(self) -> list[str]:
        deployment = self.deployment
        locks = (deployment.lock(r) for r in self.resources)
        queues = self._queues() if self.calls else ()
        return [deployment.held, deployment.tomb(self.token), *locks, *queues]

    def arguments(self) -> list[Argument]:
        tomb = ms(self.deployment.max_ttl) if self.bury else 0
        return [self.value, tomb, self.waiter, *self.resources]


COMMANDS: tuple[type[Command], ...] = (Acquire, Confirm, Extend, Heal, Release)
