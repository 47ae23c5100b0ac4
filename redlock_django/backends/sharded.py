"""Several groups of masters: every resource belongs to one of them, for good.

A group is a backend of its own, with masters and a quorum of its own, and knows nothing of
the others. A lock on resources of one group is that group's alone. One that spans groups is a
lease in each of them, taken group after group in an order that is the same for everybody:
so of two that overlap, one is first wherever they meet, and none waits for the other in a ring.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from redlock_django.backends.base import BaseBackend
from redlock_django.backends.sharded_inspection import ShardedInspection
from redlock_django.engine.errors import NotAcquired, QuorumUnreachable
from redlock_django.engine.rendezvous import chosen
from redlock_django.engine.rounds import Result, ended
from redlock_django.engine.validity import Lease, LeaseState

_WORST_FIRST = (LeaseState.LOST, LeaseState.UNKNOWN, LeaseState.RENEWED)

KEPT = 0.5
"""Which part of its TTL a group's lease is kept for while the next group is waited for."""


class Part(NamedTuple):
    """What a lease has in one group."""

    group: BaseBackend
    lease: Lease


class Parts(tuple[Part, ...]):
    """The `home` of a lease that spans groups: the leases it is made of."""

    __slots__ = ()


@dataclass(slots=True)
class Ask:
    """Let a group do what its method of that name does with these arguments.

    The answer is put in here: a signal that strikes as a generator goes on loses what it is sent.
    """

    group: BaseBackend
    verb: str
    arguments: tuple[Any, ...]
    answer: Any = None


Asking = Generator[Ask, None, Result]


class ShardedBackend(BaseBackend):
    """The groups of one alias behind one door; `terms` are the first one's.

    A lease that spans groups is valid until the first of its parts is not, and lost with it.
    It bears the fingerprint of the first of them; on the masters each has its own.
    """

    def __init__(self, groups: Sequence[BaseBackend]) -> None:
        first = groups[0]
        super().__init__(
            first.alias,
            addresses=tuple(address for group in groups for address in group.addresses),
            deployment=first.deployment,
            master_timeout=first.master_timeout,
            connect_timeout=first.connect_timeout,
            tolerate=first.tolerate,
            notice=first.notice,
        )
        self.groups = tuple(groups)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for group in self.groups for name in group.deployment.names)

    def group_of(self, resource: str) -> int:
        """Return the index of the group that a resource belongs to."""
        return chosen(self.deployment.groups, resource)

    def clock(self) -> float:
        return self.groups[0].clock()

    # Taking: all parts or none.

    def acquire(self, resources: tuple[str, ...], ttl: float, wait: float, holder: str) -> Lease:
        return self._run(self._take(resources, ttl, wait, holder))

    async def aacquire(
        self, resources: tuple[str, ...], ttl: float, wait: float, holder: str
    ) -> Lease:
        return await self._arun(self._take(resources, ttl, wait, holder))

    def _take(
        self, resources: tuple[str, ...], ttl: float, wait: float, holder: str
    ) -> Asking[Lease]:
        """Ask group after group; what was taken is given back where one refuses.

        Who waits keeps what it has, but not for long: then it begins anew, with all of its
        TTL before it.
        """
        shares = self._shares(resources)
        asked = began = self.clock()
        waited = False
        while True:
            asks: list[Ask] = []
            try:
                for group, share in shares:
                    began = self.clock()
                    until = asked + wait
                    if asks:
                        until = min(until, asks[0].answer.started + KEPT * ttl)
                    left = max(0.0, until - began)
                    asks.append(Ask(group, "acquire", (share, ttl, left, holder)))
                    yield asks[-1]
                    lease: Lease = asks[-1].answer
                    waited = waited or lease.waited > 0
                if len(asks) == 1:
                    return lease
                whole = _joined(resources, _taken(asks))
                if self.clock() >= whole.until:
                    names = ", ".join(resources)
                    slow = "the groups of masters answered too slowly for the lock's TTL"
                    raise QuorumUnreachable(f"{names}: {slow}", resource=names)
                return replace(whole, waited=lease.started - asked if waited else 0.0)
            except NotAcquired as error:
                _give_back(_taken(asks))
                if len(asks) == 1 or self.clock() >= asked + wait:
                    error.waited += began - asked if wait else 0.0
                    raise
                waited = True
            except BaseException:
                _give_back(_taken(asks))
                raise

    def _shares(self, resources: tuple[str, ...]) -> list[tuple[BaseBackend, tuple[str, ...]]]:
        """What is to be taken in each group, in the order in which everybody takes them."""
        shares: dict[int, tuple[str, ...]] = {}
        for resource in resources:
            group = self.group_of(resource)
            shares[group] = (*shares.get(group, ()), resource)
        # By identity: the order of the settings may be another one in another process.
        order = sorted(shares, key=self.deployment.groups.__getitem__)
        return [(self.groups[group], shares[group]) for group in order]

    # Holding and giving back: each part by its group.

    def extend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        return self._run(self._extend(lease, ttl))

    async def aextend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        return await self._arun(self._extend(lease, ttl))

    def _extend(self, lease: Lease, ttl: float) -> Asking[tuple[LeaseState, Lease]]:
        asks = [Ask(group, "extend", (part, ttl)) for group, part in self._parts(lease)]
        yield from asks
        return _extended(lease, [ask.answer for ask in asks])

    def release(self, lease: Lease) -> bool | None:
        return self._run(self._free(lease))

    async def arelease(self, lease: Lease) -> bool | None:
        return await self._arun(self._free(lease))

    def _free(self, lease: Lease) -> Asking[bool | None]:
        asks = [Ask(group, "release", (part,)) for group, part in self._parts(lease)]
        try:
            for ask in asks:  # noqa: UP028 - on 3.12 a signal finds its way past the handler
                yield ask
        except BaseException:
            _give_back(self._parts(lease))  # to free twice does no harm
            raise
        return _freed([ask.answer for ask in asks])

    def post_release(self, lease: Lease) -> None:
        _give_back(self._parts(lease))

    def voided(self, lease: Lease) -> bool:
        return any(part.group.voided(part.lease) for part in self._parts(lease))

    def _parts(self, lease: Lease) -> Sequence[Part]:
        if isinstance(lease.home, Parts):
            return lease.home
        return (Part(self.groups[self.group_of(lease.resources[0])], lease),)

    def _run(self, asking: Asking[Result]) -> Result:
        ask = next(asking)
        while True:
            try:
                while True:  # in here, since a signal may strike where a loop turns
                    ask.answer = getattr(ask.group, ask.verb)(*ask.arguments)
                    ask = next(asking)
            except StopIteration as done:
                result: Result = done.value
                return result
            except BaseException as error:
                if ended(asking):
                    raise  # that was its own word
                ask = asking.throw(error)

    async def _arun(self, asking: Asking[Result]) -> Result:
        ask = next(asking)
        while True:
            try:
                ask.answer = await getattr(ask.group, f"a{ask.verb}")(*ask.arguments)
                ask = next(asking)
            except StopIteration as done:
                result: Result = done.value
                return result
            except BaseException as error:
                if ended(asking):
                    raise
                ask = asking.throw(error)

    # All groups alike.

    def inspect(self) -> ShardedInspection:
        shards = [group.inspect() for group in self.groups]
        return ShardedInspection(self.alias, shards, self.group_of)

    def forked(self) -> None:
        for group in self.groups:
            group.forked()

    def close(self) -> None:
        for group in self.groups:
            group.close()

    async def aclose(self) -> None:
        for group in self.groups:
            await group.aclose()


def _taken(asks: Sequence[Ask]) -> Sequence[Part]:
    return [Part(ask.group, ask.answer) for ask in asks if ask.answer is not None]


def _joined(resources: tuple[str, ...], parts: Sequence[Part]) -> Lease:
    """The lease that these parts are: as long as the one that ends first."""
    fences = {
        resource: fence
        for part in parts
        for resource, fence in zip(part.lease.resources, part.lease.fences, strict=True)
    }
    return replace(
        min((part.lease for part in parts), key=lambda lease: lease.until),
        resources=resources,
        value=parts[0].lease.value,
        fences=tuple(fences[resource] for resource in resources),
        home=Parts(parts),
    )


def _extended(lease: Lease, found: Sequence[tuple[LeaseState, Lease]]) -> tuple[LeaseState, Lease]:
    if not isinstance(lease.home, Parts):
        return found[0]
    parts = [Part(part.group, new) for part, (_, new) in zip(lease.home, found, strict=True)]
    states = {state for state, _ in found}
    worst = next(state for state in _WORST_FIRST if state in states)
    return worst, replace(_joined(lease.resources, parts), waited=lease.waited)


def _freed(freed: Sequence[bool | None]) -> bool | None:
    if False in freed:
        return False
    return None if None in freed else True


def _give_back(parts: Sequence[Part]) -> None:
    for part in parts:
        part.group.post_release(part.lease)
