"""Which group of masters a resource belongs to, when there are several.

Rendezvous hashing: every group draws a number for the resource, and the highest wins. So no
table is shared, and a group that comes or goes moves the resources of its own share alone. The
hash is BLAKE2b, which is the same in every process, Python and year; `hash()` is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import blake2b


def identity(masters: Iterable[str]) -> str:
    """By what a group is known: its masters, in whatever order they are named.

    Neither its place among the groups nor that of a master in it counts, so that putting
    either in another order moves nothing. 32 hex digits.
    """
    return blake2b("\n".join(sorted(masters)).encode(), digest_size=16).hexdigest()


def chosen(groups: Sequence[str], resource: str) -> int:
    """Give the place of the group, among these identities, that a resource belongs to."""
    name = resource.encode()
    drawn = [(_drawn(group, name), group) for group in groups]
    return drawn.index(max(drawn))


def _drawn(group: str, name: bytes) -> bytes:
    number = _keyed(group).copy()
    number.update(name)
    return number.digest()


@cache
def _keyed(group: str) -> blake2b:
    return blake2b(digest_size=8, key=group.encode())
