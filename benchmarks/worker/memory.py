"""The memory use of this process."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


def resident() -> int:
    """Return the resident memory in bytes."""
    gc.collect()
    with open("/proc/self/statm") as said:
        return int(said.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def tracing(wanted: bool) -> Iterator[None]:
    """Run tracemalloc during the block; it slows everything down."""
    if wanted:
        tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def traced() -> int:
    """Return the bytes allocated since `tracing` began and not freed; 0 without tracing."""
    return tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else 0
