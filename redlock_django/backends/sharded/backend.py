"""A store of stores: one alias whose resources are shared out over several shards.

A shard is a store of its own, with its own servers, and knows nothing of the others. Each
resource belongs to one shard, by rendezvous hashing of the shards' identities. A lock on
resources of one shard is a lease of that shard alone. A lock that spans shards is a lease in
each of them, acquired in the order of their identities, which is the same for all clients: so
two locks that overlap cannot wait for each other.

Shards are called groups in MASTERS, in messages and in the marker of a master.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redlock_django.backends.base import BaseBackend, StoreSettings
from redlock_django.backends.sharded.inspection import ShardedInspection
from redlock_django.backends.sharded.lease import Part, Parts, extended, extended_or_error, joined
from redlock_django.backends.sharded.settings import ShardedSettings
from redlock_django.engine.errors import NotAcquired, QuorumUnreachable
from redlock_django.engine.protocol.shard_choice import chosen, identity
from redlock_django.engine.run_protocol import adrive, drive
from redlock_django.engine.steps import Result
from redlock_django.engine.validity import Lease, LeaseState
from redlock_django.exceptions import InvalidRedlock

KEPT = 0.5
"""The part of its TTL for which a shard's lease is kept while the next shard is waited for."""


@dataclass(slots=True)
class Ask:
    """A call of a shard's method. The answer is stored here when the method returns.

    It is not sent into the generator: a signal that is handled as a generator resumes loses the
    value. See docs/explanation/interrupts.md.
    """

    shard: BaseBackend
    verb: str
    arguments: tuple[Any, ...]
    answer: Any = None


Asking = Generator[Ask, None, Result]


class ShardedBackend(BaseBackend):
    """The shards of one alias as one store.

    A lease that spans shards is valid until the first of its parts expires, and lost as soon as
    one part is lost. Its fingerprint is that of its first part; each shard stores its own token.
    """

    settings_class = ShardedSettings

    def __init__(self, settings: StoreSettings, shards: Sequence[BaseBackend]) -> None:
        super().__init__(shards[0].alias, settings, shards[0].notice)
        self.shards = tuple(shards)
        self.clock = shards[0].clock
        self.identities = tuple(shard.identity for shard in shards)
        self.max_resources = min(shard.max_resources for shard in shards)
        flags = (
            "is_shared", "is_fair", "keeps_min_hold", "has_permits", "hands_on", "survives_restart",
            "servers_are_masters",
        )  # fmt: skip
        for flag in flags:
            setattr(self, flag, all(getattr(shard, flag) for shard in shards))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for shard in self.shards for name in shard.names)

    @property
    def identity(self) -> str:
        return identity(self.identities)

    def shard_of(self, resource: str) -> int:
        """Return the index of the shard that a resource belongs to."""
        return chosen(self.identities, resource)

    def connect(self) -> None:
        for shard in self.shards:
            shard.connect()

    async def aconnect(self) -> None:
        for shard in self.shards:
            await shard.aconnect()

    # Acquire: all parts or none.

    def acquire(
        self, resources: tuple[str, ...], ttl: float, wait: float, holder: str, limit: int = 1
    ) -> Lease:
        self.connect()
        return drive(self._acquire(resources, ttl, wait, holder, limit), _perform)

    async def aacquire(
        self, resources: tuple[str, ...], ttl: float, wait: float, holder: str, limit: int = 1
    ) -> Lease:
        await self.aconnect()
        return await adrive(self._acquire(resources, ttl, wait, holder, limit), _aperform)

    def _acquire(
        self, resources: tuple[str, ...], ttl: float, wait: float, holder: str, limit: int = 1
    ) -> Asking[Lease]:
        """Acquire a lease in one shard after the other; release them all if a shard refuses.

        While one shard is waited for, the leases of the shards before it are kept, but for a
        part of their TTL only. Then the lock begins again, with its whole TTL.
        """
        shares = self._shares(resources)
        asked = began = self.clock()
        waited = False
        while True:
            asks: list[Ask] = []
            try:
                for shard, share in shares:
                    began = self.clock()
                    until = asked + wait
                    if asks:
                        until = min(until, asks[0].answer.started + KEPT * ttl)
                    left = max(0.0, until - began)
                    asks.append(Ask(shard, "acquire", (share, ttl, left, holder, limit)))
                    yield asks[-1]
                    lease: Lease = asks[-1].answer
                    waited = waited or lease.waited > 0
                if len(asks) == 1:
                    return lease
                whole = joined(resources, _acquired(asks))
                if self.clock() >= whole.until:
                    names = ", ".join(resources)
                    slow = "the groups of masters answered too slowly for the lock's TTL"
                    raise QuorumUnreachable(f"{names}: {slow}", resource=names)
                return replace(whole, waited=lease.started - asked if waited else 0.0)
            except NotAcquired as error:
                _release_all(_acquired(asks))
                if len(asks) == 1 or self.clock() >= asked + wait:
                    error.waited += began - asked if wait else 0.0
                    error.took += began - asked
                    raise
                waited = True
            except BaseException:
                _release_all(_acquired(asks))
                raise

    def _shares(self, resources: tuple[str, ...]) -> list[tuple[BaseBackend, tuple[str, ...]]]:
        """Return the resources of each shard, in the order in which every client acquires them."""
        shares: dict[int, tuple[str, ...]] = {}
        for resource in resources:
            index = self.shard_of(resource)
            shares[index] = (*shares.get(index, ()), resource)
        # By identity: the settings of another process may list the shards in another order.
        order = sorted(shares, key=self.identities.__getitem__)
        return [(self.shards[index], shares[index]) for index in order]

    # Extend and release: each part by its shard.

    def extend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        return drive(self._extend(lease, ttl), _perform)

    async def aextend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        return await adrive(self._extend(lease, ttl), _aperform)

    def _extend(self, lease: Lease, ttl: float) -> Asking[tuple[LeaseState, Lease]]:
        asks = [Ask(shard, "extend", (part, ttl)) for shard, part in self._parts(lease)]
        yield from asks
        return extended(lease, [ask.answer for ask in asks])

    def extend_all(
        self, asked: Sequence[tuple[Lease, float]]
    ) -> list[tuple[LeaseState, Lease] | Exception]:
        """Extend all parts of one shard together, then those of the next shard."""
        places: dict[BaseBackend, list[tuple[int, int]]] = {}
        parts = [self._parts(lease) for lease, _ in asked]
        for index, lease_parts in enumerate(parts):
            for number, part in enumerate(lease_parts):
                places.setdefault(part.shard, []).append((index, number))
        found: dict[tuple[int, int], tuple[LeaseState, Lease] | Exception] = {}
        for shard, of_shard in places.items():
            every = [(parts[index][number].lease, asked[index][1]) for index, number in of_shard]
            found.update(zip(of_shard, shard.extend_all(every), strict=True))
        return [
            extended_or_error(lease, [found[index, number] for number in range(len(parts[index]))])
            for index, (lease, _) in enumerate(asked)
        ]

    def merged(self, held: Lease, extended: Lease) -> Lease:
        pairs = zip(self._parts(held), self._parts(extended), strict=True)
        parts = [Part(one.shard, one.shard.merged(one.lease, other.lease)) for one, other in pairs]
        if not isinstance(held.home, Parts):
            return parts[0].lease
        return replace(joined(held.resources, parts), waited=held.waited)

    # Hand on: each shard could only hand on a lease of its own.

    def hand_on(self, lease: Lease, token: str, ttl: float, holder: str) -> Lease:
        return self._only_shard(lease).hand_on(lease, token, ttl, holder)

    async def ahand_on(self, lease: Lease, token: str, ttl: float, holder: str) -> Lease:
        return await self._only_shard(lease).ahand_on(lease, token, ttl, holder)

    def resume(self, handed: Lease, ttl: float, holder: str) -> Lease:
        self.connect()
        return self._only_shard(handed).resume(handed, ttl, holder)

    async def aresume(self, handed: Lease, ttl: float, holder: str) -> Lease:
        await self.aconnect()
        return await self._only_shard(handed).aresume(handed, ttl, holder)

    def _only_shard(self, lease: Lease) -> BaseBackend:
        """Return the shard of a lease; raise InvalidRedlock if it spans several."""
        first, *others = {self.shard_of(name): None for name in lease.names}
        if others:
            raise InvalidRedlock(
                f"{', '.join(lease.names)}: these resources belong to several groups of MASTERS, "
                "and only a lock in one group can be handed on. Acquire each in a lock() of its "
                "own, and hand on each"
            )
        return self.shards[first]

    def release(self, lease: Lease) -> bool | None:
        return drive(self._release(lease), _perform)

    async def arelease(self, lease: Lease) -> bool | None:
        return await adrive(self._release(lease), _aperform)

    def _release(self, lease: Lease) -> Asking[bool | None]:
        asks = [Ask(shard, "release", (part,)) for shard, part in self._parts(lease)]
        try:
            yield from asks
        except BaseException:
            _release_all(self._parts(lease))  # a second release is harmless
            raise
        return _all_released([ask.answer for ask in asks])

    def post_release(self, lease: Lease) -> None:
        _release_all(self._parts(lease))

    def voided(self, lease: Lease) -> bool:
        return any(part.shard.voided(part.lease) for part in self._parts(lease))

    def is_uncertain(self, lease: Lease) -> bool:
        return any(part.shard.is_uncertain(part.lease) for part in self._parts(lease))

    def _parts(self, lease: Lease) -> Sequence[Part]:
        if isinstance(lease.home, Parts):
            if not lease.earliest_end:
                return lease.home
            end = lease.earliest_end
            return [Part(shard, replace(part, earliest_end=end)) for shard, part in lease.home]
        return (Part(self.shards[self.shard_of(lease.resources[0])], lease),)

    # The same for all shards.

    def inspect(self) -> ShardedInspection:
        shards = [shard.inspect() for shard in self.shards]
        return ShardedInspection(self.alias, shards, self.shard_of)

    def forked(self) -> None:
        for shard in self.shards:
            shard.forked()

    def close(self) -> None:
        for shard in self.shards:
            shard.close()

    async def aclose(self) -> None:
        for shard in self.shards:
            await shard.aclose()


def _perform(ask: Ask) -> None:
    ask.answer = getattr(ask.shard, ask.verb)(*ask.arguments)


async def _aperform(ask: Ask) -> None:
    ask.answer = await getattr(ask.shard, f"a{ask.verb}")(*ask.arguments)


def _acquired(asks: Sequence[Ask]) -> Sequence[Part]:
    return [Part(ask.shard, ask.answer) for ask in asks if ask.answer is not None]


def _all_released(answers: Sequence[bool | None]) -> bool | None:
    if False in answers:
        return False
    return None if None in answers else True


def _release_all(parts: Sequence[Part]) -> None:
    for part in parts:
        part.shard.post_release(part.lease)
