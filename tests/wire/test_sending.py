"""The sends of a loop: tasks share them, but masters need not wait until all tasks have asked."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from redlock_django.wire.address import Address
from redlock_django.wire.aio import SENT_TOGETHER, LoopLinks
from redlock_django.wire.exchange import Exchange
from tests.engine.masters import Masters
from tests.wire.manual_links import Ends, ManualLinks


async def _heard(tasks: int) -> list[int]:
    """Return how many rounds the master has heard before each begins, and at last."""
    masters, ends, heard = Masters(1), Ends(), [0]
    with patch.object(LoopLinks, "_dial", ManualLinks._dial):
        links = LoopLinks(
            [Address.from_url("unix:///nowhere", None)], masters.deployment,
            master_timeout=60.0, connect_timeout=1.0,
        )  # fmt: skip
        links.arrived(0, ends.joined("run"))
        await links.start()
    begin, before = links.begin, []

    def noted(exchange: Exchange) -> None:
        heard[0] += len(ends.heard())
        before.append(heard[0])
        begin(exchange)

    with patch.object(links, "begin", noted):
        running = [asyncio.create_task(links.run(masters.acquire())) for _ in range(tasks)]
        for _ in range(2):  # the tasks begin, and what they have begun is sent
            await asyncio.sleep(0)
    for task in running:
        task.cancel()
    heard[0] += len(ends.heard())
    await asyncio.wait(running)
    links.abandon()
    ends.close()
    return [*before, heard[0]]


@pytest.mark.parametrize("tasks", [1, SENT_TOGETHER - 1])
def test_a_few_rounds_are_sent_together(tasks: int) -> None:
    assert asyncio.run(_heard(tasks)) == [*[0] * tasks, tasks]


def test_masters_get_the_first_of_many_rounds_before_the_last_has_begun() -> None:
    sent = asyncio.run(_heard(2 * SENT_TOGETHER + 1))
    assert sent == [
        *[0] * SENT_TOGETHER, *[SENT_TOGETHER] * SENT_TOGETHER, 2 * SENT_TOGETHER,
        2 * SENT_TOGETHER + 1,
    ]  # fmt: skip
