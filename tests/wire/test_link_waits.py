"""How long a round waits for connections under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from redlock_django.engine.quorum import Tally
from redlock_django.engine.steps import Round
from redlock_django.wire.links.link_changes import JOINING, LinkWait
from tests.engine.mutants import kills
from tests.engine.mutation import always, instead, never
from tests.wire.manual_links import ManualLinks, manual_links


@contextmanager
def connecting(under_way: int, failed: int = 0, masters: int = 5) -> Iterator[ManualLinks]:
    """Open links of which some are under way, or have failed."""
    with manual_links(masters) as links:
        for master in links.masters[: under_way + failed]:
            links.cut(master, "lost")
            if master.index < under_way:
                links.changes.connecting.add(master)
        yield links


def wait(links: ManualLinks, since: float = 0.0) -> float:
    """Return for how many seconds a round waits that began `since` seconds ago."""
    return links.link_wait.seconds(links.time.now - since)


def test_a_round_waits_for_a_quorum_until_its_time_to_connect_is_over() -> None:
    with connecting(3) as links:
        assert wait(links) == pytest.approx(links.link_wait._connect_timeout)
        assert wait(links, since=links.link_wait._connect_timeout + 1) < 0


@pytest.mark.parametrize("failed", [0, 5])
def test_a_round_waits_for_no_connection_if_none_is_under_way(failed: int) -> None:
    with connecting(0, failed) as links:
        assert wait(links) == 0


@kills("links are waited for without hope", LinkWait.seconds,
       never("usable + connecting < self._quorum"))  # fmt: skip
def test_a_round_does_not_wait_without_hope_for_a_quorum() -> None:
    with connecting(2, failed=3) as links:
        assert wait(links) == 0


@kills("the first lock is on a bare majority", LinkWait.seconds,
       instead("self._joining_until - now", "0.0"))  # fmt: skip
def test_the_first_round_waits_a_moment_for_the_links_that_a_quorum_does_not_need() -> None:
    with connecting(2) as links:
        assert wait(links) == pytest.approx(JOINING)
        links.time.now += JOINING / 2
        assert wait(links) == pytest.approx(JOINING / 2), "the same moment for all rounds"


@kills("a slow network joins at once", LinkWait.seconds,
       instead("max(now - began, JOINING)", "JOINING"))  # fmt: skip
def test_the_moment_is_longer_where_a_quorum_took_longer() -> None:
    with connecting(1) as links:
        assert wait(links, since=0.3) == pytest.approx(0.3)


@kills("a master that hangs is waited for again", LinkWait.seconds,
       always("self._joining_until is None"))  # fmt: skip
def test_a_master_that_hangs_is_waited_for_once() -> None:
    with connecting(1) as links:
        assert wait(links) > 0
        links.time.now += JOINING
        assert wait(links) <= 0
        links.time.now += 60
        assert wait(links) <= 0


def test_a_quorum_that_is_lost_again_is_waited_for() -> None:
    with connecting(1) as links:
        assert wait(links) > 0
        links.time.now += 60
        for master in links.masters[1:3]:
            links.cut(master, "lost")
            links.changes.connecting.add(master)
        assert wait(links) == pytest.approx(links.link_wait._connect_timeout)


@kills("releases wait for links", LinkWait.is_needed, instead("any(...)", "True"))
def test_a_release_waits_for_no_link() -> None:
    with connecting(1) as links:
        release, acquire = links.release(), links.acquire()
        assert not links.link_wait.is_needed(Round((release,) * 5, Tally(5)))
        assert links.link_wait.is_needed(Round((acquire,) * 5, Tally(5)))


def test_a_master_that_is_trusted_ends_the_waits_for_links(links: ManualLinks) -> None:
    """They wait for a quorum, and another master may not answer for as long as one may connect."""
    with patch.object(links.sockets._driver, "changed") as changed:
        links.sender.check_all()
        links.sockets.flush()
        changed.reset_mock()
        with patch.object(links.sockets, "flush"):  # not done by the test, as `trusted` does
            links.trusted(0)
        assert links.dirty, "the driver flushes if something is to be done"
        links.sockets.flush()
        changed.assert_called_once()
