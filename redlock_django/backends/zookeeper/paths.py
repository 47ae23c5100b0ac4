"""The nodes of the ZooKeeper store: queues of resources, the nodes in them, and the fences.

`ROOT/locks/RESOURCE` is the queue of a resource. It has an ephemeral sequential node for each
client that waits or holds the lock: the first one holds it. After a release before the end of a
minimum hold, and for a lock that was handed on, a persistent node takes the place of the holder's.
The value of a node is the TTL in seconds, and then what all stores have as the value of a lock: a
token, a space, JSON of the holder.

Each slot of a name with a limit is a resource (`engine.protocol.slots`). `ROOT/locks/NAME[turns]`
has a node for each client that waits for any of them.

`ROOT/fences` has the base of all fences. A fence is the base plus the transactions of the servers
between the last change of the base and one by which the holder wrote its node, once it was first.

Servers whose data was deleted have no queues, although clients may hold locks. So a tree is trusted
only if it has a base of fences, and a client that creates `ROOT/locks` removes the base. The base
is created again when all locks that may have been forgotten have ended, or when an operator
declares the tree new.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from redlock_django.engine.validity import with_drift

SPAN = 2**16
"""The most fences of one base, in µs the most by which a base can be ahead of the clock."""

LARGEST = 2**53
"""Fences are below this number, so that JavaScript and doubles represent them exactly."""

MIN_HOLD = "min_hold-"
"""Is in the name of a node without a session: of a minimum hold, or of a lock handed on."""

_TURNS = "[turns]"
"""Follows a name with several slots. No name that a user may choose contains a bracket."""

_NODE = re.compile(rf"([0-9a-f]{{32}})-({MIN_HOLD})?(-?\d{{9,10}})")


class Node(NamedTuple):
    """A node in a queue, from its name; `position` orders the nodes of a queue."""

    position: int
    name: str
    token: str
    is_min_hold: bool


@dataclass(frozen=True)
class Tree:
    """The paths of all nodes under `root`."""

    root: str

    @property
    def fences(self) -> str:
        """The node with the base of all fences."""
        return f"{self.root}/fences"

    @property
    def locks(self) -> str:
        """The node of all queues."""
        return f"{self.root}/locks"

    def queue(self, resource: str) -> str:
        """The queue of a resource."""
        return f"{self.locks}/{quote(resource, safe='').replace('.', '%2E')}"

    def turns(self, name: str) -> str:
        """The queue of the clients that wait for a slot of a name; its first node holds nothing."""
        return self.queue(f"{name}{_TURNS}")

    @property
    def all(self) -> tuple[str, ...]:
        """The nodes that are needed, those above others first."""
        above = [self.root[:end] for end, letter in enumerate(self.root) if letter == "/" and end]
        return (*above, self.root, self.locks)


def resource_of(name: str) -> str:
    """Return the resource whose queue has this name."""
    return unquote(name)


def is_turns(resource: str) -> bool:
    """Return whether the queue of this resource is a queue of turns, so no lock."""
    return resource.endswith(_TURNS)


def in_order(names: Iterable[str]) -> list[Node]:
    """Return the nodes of a queue, the holder's first."""
    nodes = []
    for name in names:
        if found := _NODE.fullmatch(name):
            token, min_hold, number = found.groups()
            # The servers count with 32 bits, and go on with negative numbers.
            nodes.append(Node(int(number) % 2**32, name, token, bool(min_hold)))
    return sorted(nodes)


def min_hold_path(path: str) -> str:
    """Return the path of the node that takes the place of `path` until the minimum hold is over."""
    token = path.rpartition("/")[2].partition("-")[0]
    return path_in_place(path, token, is_min_hold=True)


def path_in_place(path: str, token: str, *, is_min_hold: bool = False) -> str:
    """Return the path of a node with this token that has the place of `path` in its queue."""
    queue, _, name = path.rpartition("/")
    number = name.partition("-")[2].removeprefix(MIN_HOLD)
    return f"{queue}/{token}-{MIN_HOLD if is_min_hold else ''}{number}"


def data_of(ttl: float, value: str) -> bytes:
    """Return the data of a node."""
    return f"{ttl:.3f} {value}".encode()


def value_of(data: bytes) -> bytes:
    """Return the value of the lock that a node has."""
    return data.partition(b" ")[2]


def seconds_left(node: tuple[bytes, Any], now: float) -> float:
    """Return the seconds that a lock has left, from its node; `now` is the servers' time."""
    data, stat = node
    try:
        ttl = float(data.partition(b" ")[0])
    except ValueError:
        return 0.0
    return min(ttl, max(0.0, float(stat.mtime) / 1000 + ttl - now))


def trusted_in(now: float, locks: Any, forgotten: float) -> float:
    """Return the seconds until every lock that may be forgotten has ended; 0 or less if it has.

    `now` is the servers' time, `locks` the stat of `Tree.locks`. A lock lasts `forgotten` seconds.
    """
    return float(locks.ctime) / 1000 + with_drift(forgotten) - now


def untrusted(left: float) -> str:
    """Return why no lock is granted for `left` seconds."""
    soon = f"trusted in {max(left, 1):.0f} s"
    return f"new: run 'manage.py redlock_init'. Or it has lost its data: {soon}"
