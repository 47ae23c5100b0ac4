"""The commands that are sent to a master, and the meaning of each answer.

A command is one Lua script of `lua/` (run by EVALSHA), its KEYS, its ARGV, and a method that reads
the reply as a `Vote`. Every reply is one string, which `decode` reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha1
from importlib.resources import files
from struct import Struct
from typing import Any, ClassVar, NamedTuple

from redlock_django.engine.protocol.deployment import Deployment, ms
from redlock_django.engine.protocol.slots import name_of, slot_resource
from redlock_django.engine.protocol.statuses import UNCOUNTED, Status
from redlock_django.engine.protocol.votes import Ballot, Vote, failed, granted

_FILES = files(__package__).joinpath("lua")
INCLUDE = re.compile(r"^ *-- include (\w+)\.lua\n", re.MULTILINE)
"""A line of a script that stands for the text of another file."""

TOKEN = 32  # the hex digits of a token, with which a value begins
ENDED = b"ended"
"""The rival, in the votes on a `Take`, of a master where the lock has ended."""

PROPOSAL = Struct("<d")
_CONSTANTS = Struct("<2d")
_HEAD = Struct("<3q")
_REFUSAL = Struct("<4q")
_NUMBER = Struct("<q")
_STATUSES = {status.name: status.value for status in Status}
# A member of an enum takes long to look up.
_GRANTED, _ABSENT = Status.GRANTED.value, Status.ABSENT.value
_RESERVED = Status.RESERVED.value
_REFUSALS = Status.REFUSED.value, _RESERVED
_YES, _NO = Ballot.GRANTED, Ballot.REFUSED

RELEASED = granted()
"""The vote of nearly every release: its script does not read the clock."""

Argument = str | int | bytes


class Reply(NamedTuple):
    """The reply of a script. `time` is the master's clock in µs, 0 if the script did not read it.

    `rest` has integers of eight bytes, and text after them: as many of both as belong to the
    command and the status.
    """

    number: int
    status: int
    time: int
    rest: bytes


def decode(data: object) -> Reply:
    """Read the string with which a script answered. Raises ValueError if it is another answer."""
    if type(data) is not bytes or len(data) < _HEAD.size:
        raise ValueError("not the reply of a script")
    number, status, time = _HEAD.unpack_from(data)
    return Reply(number, status, time, data[_HEAD.size :])


def decode_list(data: Any) -> tuple[Reply, list[Any]]:
    """Read an array with which a script answered: a string like any reply, and what follows.

    Raises ValueError or TypeError if it is another answer.
    """
    head, *items = data
    return decode(head), items


def script(name: str, deployment: Deployment, *, failover: bool | None = None) -> tuple[str, str]:
    """Return the Lua source of a command as a deployment sends it, and its SHA-1.

    It has numbers in place of the names of statuses and of the deployment's constants. With
    `failover` (by default as the deployment), a trusted command begins with a check that its server
    is still the same.
    """
    failover = deployment.failover if failover is None else failover
    return _script(name, failover, deployment.constants)


@cache
def _script(name: str, failover: bool, constants: tuple[tuple[str, int], ...]) -> tuple[str, str]:
    text = _lua("failover") if failover and name in _TRUSTED else ""
    text = numbered(text + _lua(name), constants)
    return text, sha1(text.encode(), usedforsecurity=False).hexdigest()


def numbered(text: str, constants: tuple[tuple[str, int], ...]) -> str:
    """Return Lua with numbers in place of the names of statuses and of a deployment's constants."""
    numbers = {**_STATUSES, **dict(constants)}
    return re.sub(rf"\b({'|'.join(numbers)})\b", lambda name: str(numbers[name[1]]), text)


@cache
def _integers(many: int) -> Struct:
    return Struct(f"<{many}q")


def _lua(file: str) -> str:
    text = _FILES.joinpath(f"{file}.lua").read_text(encoding="utf-8")
    return INCLUDE.sub(lambda line: _lua(line[1]), text)


@dataclass(slots=True)
class Command:
    """One command for a master. It is never changed; a frozen class would take longer to create.

    `name` is the name of the script. A `trusted` command ends with two more arguments: the marker
    that the client expects and the time at which that master is ready. They differ from master to
    master, so the link adds them. `sets` means that the command may leave the lock on the master,
    `fenced` that its answer has the fence of each resource. With a `limit` of more than 1, the
    resource is one slot of a name that so many clients may hold at once.
    """

    name: ClassVar[str]
    trusted: ClassVar[bool] = True
    sets: ClassVar[bool] = False
    fenced: ClassVar[bool] = False

    deployment: Deployment
    resources: tuple[str, ...]
    value: str = field(repr=False)  # holds the token
    limit: int = field(default=1, kw_only=True)

    @property
    def early(self) -> bool:
        """True if a grant of it counts even before the master is trusted."""
        return False

    @property
    def token(self) -> str:
        """The token that this command is about."""
        return self.value[:TOKEN]

    def keys(self) -> list[str]:
        """Return the KEYS of the script."""
        raise NotImplementedError

    def arguments(self) -> list[Argument]:
        """Return the ARGV of the script, without the number of the round and the marker."""
        raise NotImplementedError

    def _locks_and_fences(self) -> list[str]:
        deployment = self.deployment
        return [key for r in self.resources for key in (deployment.lock(r), deployment.fence(r))]

    def _keys_to_set(self) -> list[str]:
        """Return the KEYS that set_locks.lua uses."""
        deployment = self.deployment
        tomb = deployment.tomb(self.token)
        return [deployment.marker, deployment.held, tomb, *self._locks_and_fences()]

    def _queues(self) -> list[str]:
        return [self.deployment.queue(resource) for resource in self.resources]

    def vote(self, status: int, time: int, rest: bytes) -> Vote:
        """Return the meaning of a reply, whose round's number is left out.

        Raises struct.error or KeyError if it is no reply to this command.
        """
        if status == _GRANTED:
            fences = _integers(len(self.resources) if self.fenced else 0).unpack(rest)
            return Vote(_YES, "granted", time, fences)
        if status in _REFUSALS:
            index, ttl, fence, ahead = _REFUSAL.unpack_from(rest)
            rival, taken, reserved = rest[_REFUSAL.size :], b"", status == _RESERVED
            if self.limit > 1:
                rival, taken = rival[: -self.limit], rival[-self.limit :]
            at = index - 1
            return Vote(_NO, "", time, (fence,), ttl, rival, at, False, ahead, reserved, taken)
        if status == _ABSENT:
            (index,) = _NUMBER.unpack(rest)
            return Vote(_NO, "forgot the lock", time, resource=index - 1, absent=True)
        return failed(UNCOUNTED[status], time=time)


@dataclass(slots=True)
class Acquire(Command):
    """Set the lock of every resource or of none, or that of one slot.

    The refusal of a slot shows which slots of its name are taken. `ttl` is in seconds, `proposal`
    in µs of the client's clock. A refused `waiter` (its name; "" if the client does not wait) joins
    the queue of the resource at fault, ordered by `ticket`, its first proposal. A granted waiter
    leaves the queues.
    """

    name: ClassVar[str] = "acquire"
    sets: ClassVar[bool] = True
    fenced: ClassVar[bool] = True

    ttl: float
    proposal: int
    waiter: str = ""
    ticket: int = 0

    def keys(self) -> list[str]:
        slots = _slots(self.deployment, self.resources[0], self.limit)
        return [*self._keys_to_set(), *self._queues(), *slots]

    def arguments(self) -> list[Argument]:
        waiting = (f"{self.ticket} {self.waiter}",) if self.waiter else ()
        numbers = PROPOSAL.pack(self.proposal) + self.constants()
        return [self.value, numbers, *waiting]

    def constants(self) -> bytes:
        """Return the numbers that do not differ from one acquire to the next, as doubles."""
        return _CONSTANTS.pack(ms(self.ttl), self.limit if self.limit > 1 else 0)


@dataclass(slots=True)
class Confirm(Command):
    """Raise the fences to `fences` on masters where every lock still has this token."""

    name: ClassVar[str] = "confirm"
    fenced: ClassVar[bool] = True

    fences: tuple[int, ...]

    def keys(self) -> list[str]:
        return [self.deployment.marker, *self._locks_and_fences()]

    def arguments(self) -> list[Argument]:
        return [self.value, *self.fences]


@dataclass(slots=True)
class Extend(Command):
    """Set the TTL of locks to `ttl` seconds where they have this token; never re-create one.

    A promoted replica that has the lock cannot have granted it to another client, and did not
    forget it: its holder may keep it, although it grants no other lock yet.
    """

    name: ClassVar[str] = "extend"

    ttl: float

    @property
    def early(self) -> bool:
        return self.deployment.failover

    def keys(self) -> list[str]:
        deployment = self.deployment
        return [deployment.marker, deployment.held, *(deployment.lock(r) for r in self.resources)]

    def arguments(self) -> list[Argument]:
        return [self.value, ms(self.ttl)]


@dataclass(slots=True)
class Heal(Command):
    """Set a held lock on a master that had forgotten it; it votes from the next extension on."""

    name: ClassVar[str] = "heal"
    sets: ClassVar[bool] = True
    fenced: ClassVar[bool] = True

    ttl: float
    fences: tuple[int, ...]

    def keys(self) -> list[str]:
        return self._keys_to_set()

    def arguments(self) -> list[Argument]:
        return [self.value, ms(self.ttl), *self.fences]

    def vote(self, status: int, time: int, rest: bytes) -> Vote:
        # This master did not have the lock until now and may have granted it to another client in
        # between, so its vote must not count in the round that sets the lock.
        vote = super(Heal, self).vote(status, time, rest)
        if vote.ballot is Ballot.GRANTED:
            return failed("healed: counts from the next extension", time=vote.time)
        return vote


@dataclass(slots=True)
class Release(Command):
    """Delete the locks that have this token, and call the first waiter of each.

    With `left` seconds of a minimum hold, shorten their TTL to that instead, and do not call
    waiters. With `bury`, write a tombstone as well, so that the token cannot be set again. With a
    `waiter`, remove that waiter from the queues. Without `calls`, leave the queues alone: a client
    that asks again keeps its place. Where a name has several slots (`limit`), as many waiters have
    a turn as slots are free.
    """

    name: ClassVar[str] = "release"
    trusted: ClassVar[bool] = False

    bury: bool = False
    left: float = 0.0
    waiter: str = ""
    calls: bool = True

    @property
    def plain(self) -> bool:
        """True if the release does only what every release does."""
        return not (self.bury or self.left or self.waiter)

    def vote(self, status: int, time: int, rest: bytes) -> Vote:
        if status == _GRANTED and not (time or rest):
            return RELEASED
        return Command.vote(self, status, time, rest)

    def keys(self) -> list[str]:
        deployment = self.deployment
        locks = (deployment.lock(r) for r in self.resources)
        tomb = (deployment.tomb(self.token),) if self.bury else ()
        queues = self._queues() if self.calls else ()
        slots = _slots(deployment, self.resources[0], self.limit) if queues else ()
        return [deployment.held, *locks, *tomb, *queues, *slots]

    def arguments(self) -> list[Argument]:
        many = len(self.resources)
        if self.plain and many == 1:
            return [self.value]
        return [self.value, f"{many} {self.bury:d} {ms(self.left)} {self.waiter}"]


@dataclass(slots=True)
class Take(Acquire):
    """Set the lock of every resource that has the token `expected`, for `ttl` seconds, or of none.

    A tombstone of that token is written, so that no other client replaces it again. The `fences`
    stay as they are. A vote that grants has the ms that the locks had left; the rival in a vote
    that refuses is the client that has replaced the token, or ENDED.
    """

    name: ClassVar[str] = "take"
    fenced: ClassVar[bool] = False

    expected: str = field(kw_only=True, repr=False)
    fences: tuple[int, ...] = field(kw_only=True)

    def keys(self) -> list[str]:
        deployment = self.deployment
        tombs = deployment.tomb(self.token), deployment.tomb(self.expected)
        locks = (deployment.lock(resource) for resource in self.resources)
        return [deployment.marker, deployment.held, *tombs, *locks]

    def arguments(self) -> list[Argument]:
        return [self.value, self.expected, ms(self.ttl)]

    def vote(self, status: int, time: int, rest: bytes) -> Vote:
        if status == _GRANTED:
            (left,) = _NUMBER.unpack(rest)
            return Vote(Ballot.GRANTED, "granted", time, self.fences, left)
        if status == Status.USED:
            return Vote(Ballot.REFUSED, "its ticket was used", time, rival=rest)
        vote = Command.vote(self, status, time, rest)
        # To whichever client the lock belongs now: it is not held for this one any more.
        return vote._replace(rival=ENDED) if vote.ballot is Ballot.REFUSED else vote

    def restore(self) -> Restore:
        """Return the command that undoes this one."""
        return Restore(self.deployment, self.resources, self.value, old=self.expected)


@dataclass(slots=True)
class Restore(Release):
    """Undo `Take`: give the locks that have this token the value and the end that they had before.

    `old` is the token that was replaced. It is kept for a master that is away, as any release.
    """

    name: ClassVar[str] = "restore"

    old: str = field(kw_only=True, repr=False)

    def keys(self) -> list[str]:
        deployment = self.deployment
        locks = (deployment.lock(resource) for resource in self.resources)
        return [deployment.tomb(self.old), deployment.held, deployment.tomb(self.token), *locks]

    def arguments(self) -> list[Argument]:
        return [self.value]


def _slots(deployment: Deployment, resource: str, limit: int) -> list[str]:
    """Return the lock of each slot of the name that `resource` is a slot of; none if it has one."""
    name = name_of(resource)
    slots = range(limit) if limit > 1 else ()
    return [deployment.lock(slot_resource(name, slot)) for slot in slots]


COMMANDS: tuple[type[Command], ...] = (
    Acquire, Confirm, Extend, Heal, Release, Restore, Take,
)  # fmt: skip
_TRUSTED = frozenset(command.name for command in COMMANDS if command.trusted)
