"""A pytest plugin with fixtures, active wherever this package is installed.

Loading it imports neither Django nor redis. `-p no:redlock_django` disables it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

try:
    import pytest
except ImportError as error:
    raise ImportError("redlock_django.testing.plugin needs pytest: pip install pytest") from error

if TYPE_CHECKING:
    from redlock_django.backends.memory.backend import MemoryBackend
    from redlock_django.testing.masters import LocalMaster


@pytest.fixture
def redlock_memory() -> Iterator[MemoryBackend]:
    """Replace all masters by masters in memory without locks; return the backend of "default"."""
    from redlock_django.testing import memory_masters

    with memory_masters() as backend:
        yield backend


@pytest.fixture(scope="session")
def _redlock_servers() -> Iterator[list[LocalMaster]]:
    from redlock_django.testing import local_masters

    with local_masters(3) as masters:
        yield masters


@pytest.fixture
def redlock_masters(_redlock_servers: list[LocalMaster]) -> Iterator[list[LocalMaster]]:
    """Replace all masters by three real servers that are up, empty and trusted; return them."""
    from redlock_django.testing import real_masters

    with real_masters(_redlock_servers):
        yield _redlock_servers
