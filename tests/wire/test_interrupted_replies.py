"""An interrupt while a thread counts replies, which may be those of other threads."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from functools import partial

import pytest

from redlock_django.engine.statuses import GRANTED, REFUSED
from redlock_django.wire.lateness import LONGEST
from tests.live.test_locking_interrupts import Lines
from tests.wire.link_schedules import age, poll
from tests.wire.manual_links import TIMEOUT, manual_links
from tests.wire.scripted import resp

ANSWERS = {"granted": (GRANTED, 7), "refused": (REFUSED, 1, 900, 5, b"b" * 32, -1)}


@pytest.mark.parametrize("answer", ANSWERS)
def test_at_every_line_the_caller_still_gets_its_verdict(answer: str) -> None:
    """From the reply or, if that is lost, from its lateness."""
    lines, visits = Lines(), Counter[tuple[str, int]]()
    status, *rest = ANSWERS[answer]

    def strike(wanted: tuple[tuple[str, int], int] | None = None) -> bool:
        with manual_links(1) as links:
            exchange = links.ask(links.acquire())
            links.ends[0].say(resp([exchange.number, status, int(time.time() * 1e6), *rest]))
            with suppress(KeyboardInterrupt):
                lines.run(partial(links.read, links.masters[0]), wanted)
            age(links, 10.0)
            poll(links, LONGEST * TIMEOUT)
            return exchange.decided

    assert strike()
    visits.update(lines.seen)
    assert len(visits) > 10
    for place, times in visits.items():
        for nth in range(1, times + 1):
            assert strike((place, nth)), f"no verdict after an interrupt at {place}, time {nth}"
