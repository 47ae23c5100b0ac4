"""Every test of the contract runs against every store, called from threads and from a loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.contract.stores import CALLERS, STORES, Store, SyncCaller, calling

if TYPE_CHECKING:
    from pytest_django import Settings


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, settings: Settings) -> Store:
    return STORES[request.param](request, settings)


@pytest.fixture(params=CALLERS)
def caller(request: pytest.FixtureRequest, store: Store) -> Iterator[SyncCaller]:
    with calling(request.param, store) as caller:
        yield caller
