"""`uv run python -m benchmarks spread`: how evenly a million resources are distributed.

Nothing is asked but the hash, so the figures are the same on every machine; only the time of
one choice is not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from benchmarks.harness.workload import markdown
from redlock_django.engine.protocol.shard_choice import chosen, identity

RESOURCES = 1_000_000


def main() -> None:
    """Print the table; the first argument is the number of resources."""
    many = int(sys.argv[1]) if len(sys.argv) > 1 else RESOURCES
    print(table(many))


HEADS = ("Groups", "smallest share", "largest share", "moved by one more", "ideally", "µs a choice")


def table(many: int) -> str:
    """Return the shares of 2, 4 and 8 groups, and the part that moves when one is added."""
    return markdown(HEADS, [row(count, many) for count in (2, 4, 8)])


def row(count: int, many: int) -> list[str]:
    """Return the row of so many groups. Raises AssertionError if more moves than must."""
    groups = [identity(f"10.0.{group}.{n}/6379/0" for n in (1, 2, 3)) for group in range(9)]
    began = time.perf_counter()
    before = _places(groups[:count], many)
    took = (time.perf_counter() - began) / many * 1e6
    moves = [
        (old, new) for old, new in zip(before, _places(groups[: count + 1], many), strict=True)
    ]
    shares = [before.count(group) / many for group in range(count)]
    moved = sum(old != new for old, new in moves) / many
    if astray := sum(old != new != count for old, new in moves):
        raise AssertionError(f"{astray} resources moved between groups that both stayed")
    parts = (min(shares), max(shares), moved, 1 / (count + 1))
    return [str(count), *(f"{part:.3%}" for part in parts), f"{took:.1f}"]


def _places(groups: Sequence[str], many: int) -> list[int]:
    return [chosen(groups, f"order:{number}") for number in range(many)]
