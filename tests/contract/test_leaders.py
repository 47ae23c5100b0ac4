"""`leader()` in every store: one leads, its term has a number, and the next follows at once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from redlock_django import leader, locks
from tests.contract.stores import Store
from tests.inspecting import look
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("store")


def test_terms_follow_each_other_and_their_numbers_grow(store: Store) -> None:
    numbers: list[int] = []

    def campaign() -> None:
        with leader("scheduler", ttl=30) as term:
            numbers.append(term.number)

    with leader("scheduler", ttl=30) as term:
        term.ensure_held()
        numbers.append(term.number)
        candidate = threading.Thread(target=campaign)
        candidate.start()
        until(lambda: look(store.backend, ["scheduler"]).locks[0].waiters, "a candidate waits")
        assert len(numbers) == 1
    candidate.join(20)  # less than the TTL
    assert numbers == sorted({*numbers})
    assert len(numbers) == 2
    locks.close()


def test_a_term_of_a_task() -> None:
    async def campaign() -> int:
        async with leader("scheduler") as term:
            term.ensure_held()
            return term.number

    async def both() -> tuple[int, int]:
        try:
            return await asyncio.gather(campaign(), campaign())
        finally:
            await locks.aclose()

    first, second = asyncio.run(both())
    assert first != second


def test_operators_see_who_leads(store: Store) -> None:
    with leader("scheduler"), store.backend.inspect() as inspection:
        (held,) = inspection.holdings(["scheduler"])
        assert held.holder["leader"] == 1
        assert held.since is not None
    locks.close()
