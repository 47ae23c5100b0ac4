"""A lease that spans shards: the leases it consists of, and what their extensions amount to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from redlock_django.backends.base import BaseBackend
from redlock_django.engine.validity import Lease, LeaseState

_WORST_FIRST = (LeaseState.LOST, LeaseState.UNKNOWN, LeaseState.RENEWED)


class Part(NamedTuple):
    """The lease that a lock has in one shard."""

    shard: BaseBackend
    lease: Lease


class Parts(tuple[Part, ...]):
    """The `home` of a lease that spans shards: the leases it consists of."""

    __slots__ = ()


def joined(resources: tuple[str, ...], parts: Sequence[Part]) -> Lease:
    """Return the lease that consists of these parts, valid until the first of them expires."""
    fences = {
        resource: fence
        for part in parts
        for resource, fence in zip(part.lease.resources, part.lease.fences, strict=True)
    }
    return replace(
        min((part.lease for part in parts), key=lambda lease: lease.until),
        resources=resources,
        token=parts[0].lease.token,
        fences=tuple(fences[resource] for resource in resources),
        attempts=sum(part.lease.attempts for part in parts),
        home=Parts(parts),
    )


def extended(lease: Lease, found: Sequence[tuple[LeaseState, Lease]]) -> tuple[LeaseState, Lease]:
    """Return the state and the lease that follow from the extensions of its parts, in order."""
    if not isinstance(lease.home, Parts):
        return found[0]
    parts = [Part(part.shard, new) for part, (_, new) in zip(lease.home, found, strict=True)]
    states = {state for state, _ in found}
    worst = next(state for state in _WORST_FIRST if state in states)
    return worst, replace(joined(lease.resources, parts), waited=lease.waited)


def extended_or_error(
    lease: Lease, found: Sequence[tuple[LeaseState, Lease] | Exception]
) -> tuple[LeaseState, Lease] | Exception:
    """Return as `extended` does, or the first error of a part."""
    results = []
    for result in found:
        if isinstance(result, Exception):
            return result
        results.append(result)
    return extended(lease, results)
