"""What the tests of whole sites share: their database, and masters nobody else touches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.testing.masters import LocalMaster, local_masters

if TYPE_CHECKING:
    from tests.live.increments.serving import Counters, Site


@pytest.fixture(scope="session")
def counters(postgres: dict[str, Any]) -> Iterator[Counters]:
    from tests.live.increments.serving import Counters

    made = Counters(postgres)
    yield made
    made.close()


@pytest.fixture(scope="session")
def site_masters() -> Iterator[list[LocalMaster]]:
    """Three masters that no other test empties under a running server."""
    with local_masters(3) as masters:
        yield masters


@pytest.fixture(scope="session")
def sites(
    counters: Counters, postgres: dict[str, Any], site_masters: list[LocalMaster]
) -> Iterator[Callable[[str, bool], Site]]:
    """Give the running server of a kind, with ATOMIC_REQUESTS or without; started once."""
    from tests.live.increments.serving import serving

    with ExitStack() as running:

        @cache
        def site(server: str, atomic: bool) -> Site:
            return running.enter_context(
                serving(server, database=postgres, masters=site_masters, atomic=atomic)
            )

        yield site


@pytest.fixture
def site(request: pytest.FixtureRequest, sites: Callable[[str, bool], Site]) -> Site:
    """The server named by the parameter: "wsgi-atomic", "asgi-plain" and so on."""
    server, _, transactions = request.param.partition("-")
    return sites(server, transactions == "atomic")
