"""The group of masters that a resource belongs to, if there are several groups.

This is rendezvous hashing: each group has a score for the resource, and the group with the highest
score has the resource. So clients share no table, and adding or removing a group moves only the
resources of that group. The hash is BLAKE2b, which is the same in every process and in every
version of Python; `hash()` is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import blake2b


def identity(masters: Iterable[str]) -> str:
    """Return the identity of a group: a hash of its masters, 32 hex digits.

    The order of the groups and the order of the masters in a group do not count, so reordering
    moves no resource.
    """
    return blake2b("\n".join(sorted(masters)).encode(), digest_size=16).hexdigest()


def chosen(groups: Sequence[str], resource: str) -> int:
    """Return the index of the group, among these identities, that a resource belongs to."""
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
