"""Held locks, forced release and health of a sharded store: its shards' answers, merged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Self, TypeVar

from redlock_django.backends.inspection.contract import Inspection
from redlock_django.backends.inspection.results import (
    Freed,
    Listing,
    ServerHealth,
    twin_fault,
    with_conflict,
)
from redlock_django.engine.inspection.holders import Holding

Answer = TypeVar("Answer")


class ShardedInspection(Inspection):
    """Asks all shards at the same time: servers that hang in several shards are waited for once.

    `shard_of` returns the index of the shard that decides about a resource. A lock that another
    shard has is shown and freed, too: a change of the settings may have left it there.
    """

    def __init__(
        self, using: str, shards: Sequence[Inspection], shard_of: Callable[[str], int]
    ) -> None:
        super().__init__(using, [name for shard in shards for name in shard.servers])
        self._shards = shards
        self._shard_of = shard_of
        self._open = ExitStack()

    def __enter__(self) -> Self:
        for shard in self._shards:
            self._open.enter_context(shard)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def _each(self, work: Callable[[Inspection], Answer]) -> list[Answer]:
        with ThreadPoolExecutor(len(self._shards), "redlock-inspection") as pool:
            return list(pool.map(work, self._shards))

    @property
    def silent(self) -> Mapping[str, str]:
        return {name: why for shard in self._shards for name, why in shard.silent.items()}

    def has_quorum(self, resource: str | None = None) -> bool:
        if resource is None:
            return all(shard.has_quorum() for shard in self._shards)
        return self._shards[self._shard_of(resource)].has_quorum(resource)

    def listing(
        self, *, search: str = "", scan: bool = False, last_first: bool = False, most: int
    ) -> Listing:
        every = self._each(
            lambda shard: shard.listing(search=search, scan=scan, last_first=last_first, most=most)
        )
        left: dict[str, float] = {}
        for one in every:
            left |= {name: max(ttl, left.get(name, 0.0)) for name, ttl in one.left.items()}
        return Listing(
            left=left,
            about=sum(one.about for one in every),
            stopped_at=max((one.stopped_at for one in every if one.stopped_at), default=None),
        )

    def holdings(self, resources: Sequence[str]) -> list[Holding]:
        if not resources:
            return []
        by_shard = [
            {holding.resource: holding for holding in found}
            for found in self._each(lambda shard: shard.holdings(resources))
        ]
        holdings = []
        for resource in resources:
            own = by_shard[self._shard_of(resource)]
            found = next((one[resource] for one in (own, *by_shard) if resource in one), None)
            if found is not None:
                holdings.append(found)
        return holdings

    def free(self, resource: str, fingerprint: str | None = None) -> Freed:
        own = self._shard_of(resource)
        found = self._each(lambda shard: shard.holdings([resource]))
        index = next((index for index in (own, *range(len(found))) if found[index]), own)
        freed = self._shards[index].free(resource, fingerprint)
        return freed if freed.fingerprint else replace(freed, masters=self.silent)

    def health(self) -> list[ServerHealth]:
        every = self._each(lambda shard: shard.health())
        servers = [
            replace(server, shard=f"group {number}")
            for number, shard in enumerate(every, 1)
            for server in shard
        ]
        return with_conflict(_without_twins(servers))


def _without_twins(servers: Sequence[ServerHealth]) -> list[ServerHealth]:
    """Report servers that are in several shards, and count none of their votes."""
    names: dict[str, list[str]] = defaultdict(list)
    for server in servers:
        if server.health is not None and server.health.run_id:
            names[server.health.run_id].append(server.name)
    found = []
    for server in servers:
        same = names[server.health.run_id] if server.health is not None else []
        if others := [name for name in same if name != server.name]:
            rest = [fault for fault in server.faults if fault[0] != "twin"]
            faults = (twin_fault(others), *rest)
            found.append(replace(server, faults=faults, counted=False))
        else:
            found.append(server)
    return found
