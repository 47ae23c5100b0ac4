"""The shard that a resource belongs to, if there are several: sets of masters of equal size.

This is rendezvous hashing: each shard has a score for the resource, and the shard with the highest
score has the resource. So clients share no table, and adding or removing a shard moves only the
resources of that shard. The hash is BLAKE2b, which is the same in every process and in every
version of Python; `hash()` is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import blake2b

from redlock_django.engine.protocol.slots import name_of


def identity(masters: Iterable[str]) -> str:
    """Return the identity of a shard: a hash of its masters, 32 hex digits.

    The order of the shards and the order of the masters in a shard do not count, so reordering
    moves no resource.
    """
    return blake2b("\n".join(sorted(masters)).encode(), digest_size=16).hexdigest()


def chosen(shards: Sequence[str], resource: str) -> int:
    """Return the index of the shard, among these identities, that a resource belongs to.

    All slots of a name belong to one shard.
    """
    name = name_of(resource).encode()
    drawn = [(_drawn(shard, name), shard) for shard in shards]
    return drawn.index(max(drawn))


def _drawn(shard: str, name: bytes) -> bytes:
    number = _keyed(shard).copy()
    number.update(name)
    return number.digest()


@cache
def _keyed(shard: str) -> blake2b:
    return blake2b(digest_size=8, key=shard.encode())
