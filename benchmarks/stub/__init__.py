"""Masters that grant at once and cost nothing, to measure what a client can do at best."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from benchmarks.native import serving
from redlock_django.engine.protocol.commands import script

SOURCE = Path(__file__).parent / "grant.c"


@contextlib.contextmanager
def granting(masters: int) -> Iterator[tuple[list[int], int]]:
    """Start that many stub masters; yield their ports and their process."""
    with serving(SOURCE, script("acquire")[1], masters) as started:
        yield started
