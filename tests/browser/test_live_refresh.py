"""The live refresh in a real browser: it replaces changed parts of the page only."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import HELD
from tests.browser.test_held_locks import row
from tests.operate.planted import free, plant

if TYPE_CHECKING:
    from playwright.sync_api import Page, Request

    from redlock_django.testing.masters import LocalMaster
    from tests.browser.conftest import Visitor

pytestmark = [pytest.mark.live, pytest.mark.slow]


def refreshes(page: Page) -> list[str]:
    """Return a list that collects the URLs of all refreshes from now on."""
    asked: list[str] = []

    def count(request: Request) -> None:
        if request.resource_type == "fetch":
            asked.append(request.url)

    page.on("request", count)
    return asked


def stop_the_clock(page: Page) -> None:
    """Make the time of the page stand still between two `run_for`, however long a test takes."""
    page.clock.install()
    page.clock.pause_at(datetime.now() + timedelta(hours=1))


def start(page: Page) -> None:
    page.get_by_role("button", name="Start live refresh").click()
    expect(page.locator(".redlock-live-status")).to_have_text("Refreshes every 5 s")
    answered(page)


def answered(page: Page) -> None:
    """Wait for the response to a refresh, after which the next refresh is scheduled."""
    expect(page.locator("#redlock-live:not([data-fetching])")).to_be_visible()


def next_refresh(page: Page) -> None:
    page.clock.run_for(5000)
    answered(page)


def hide(page: Page, hidden: bool) -> None:
    page.evaluate(
        """hidden => {
            Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_refresh_keeps_selection_focus_and_scroll(
    visitor: Visitor, masters: list[LocalMaster]
) -> None:
    for number in range(40):
        plant(masters[:3], f"n:{number:02}", token="a", ttl=1000 + number)
    page = visitor.open()
    asked = refreshes(page)
    expect(row(page, "n:30")).to_be_visible()
    assert asked == []  # The live refresh is off by default.
    for name in ("n:10", "n:30", "n:31"):
        row(page, name).locator("input.action-select").check()
    stop_the_clock(page)
    start(page)
    link = page.get_by_role("link", name="n:20", exact=True)
    link.focus()
    page.evaluate("window.scrollTo(0, 700)")
    top = page.evaluate("window.scrollY")
    assert top > 0
    free(masters, "n:31")
    plant(masters, "new:1", token="b", ttl=5000)
    next_refresh(page)
    expect(row(page, "new:1")).to_be_visible()
    expect(row(page, "n:31")).to_have_count(0)
    expect(page.locator("#redlock-count")).to_have_text("40 locks are held.")
    expect(page.locator("#redlock-count")).to_have_attribute("aria-live", "polite")
    expect(row(page, "n:10").locator("input.action-select")).to_be_checked()
    expect(row(page, "n:30").locator("input.action-select")).to_be_checked()
    expect(page.locator(".action-counter")).to_have_text("2 of 40 selected")
    expect(link).to_be_focused()
    assert page.evaluate("window.scrollY") == top
    # The rows are ordered by TTL, and the focus stays on its row.
    plant(masters, "n:20", token="a", ttl=9000)
    next_refresh(page)
    expect(page.locator("#result_list tbody tr").last).to_contain_text("n:20")
    expect(link).to_be_focused()
    # Rows that were added by a refresh can be selected like the others.
    row(page, "n:38").locator("input.action-select").check()
    row(page, "new:1").locator("input.action-select").click(modifiers=["Shift"])
    expect(page.locator(".action-counter")).to_have_text("5 of 40 selected")
    page.locator("#action-toggle").check()
    expect(page.locator(".action-counter")).to_have_text("40 of 40 selected")
    expect(row(page, "new:1").locator("input.action-select")).to_be_checked()


@pytest.mark.nightly
def test_refresh_of_an_empty_list(visitor: Visitor, masters: list[LocalMaster]) -> None:
    page = visitor.open()
    expect(page.locator("#redlock-count")).to_have_text("No lock is held.")
    stop_the_clock(page)
    start(page)
    plant(masters, "order:1", ttl=600)
    next_refresh(page)
    expect(row(page, "order:1")).to_be_visible()
    row(page, "order:1").locator("input.action-select").check()
    expect(page.locator(".action-counter")).to_have_text("1 of 1 selected")
    free(masters, "order:1")
    next_refresh(page)
    expect(page.locator("#redlock-count")).to_have_text("No lock is held.")
    expect(row(page, "order:1")).to_have_count(0)


def test_refresh_stops_pauses_and_recovers(visitor: Visitor, masters: list[LocalMaster]) -> None:
    page = visitor.open()
    asked = refreshes(page)
    stop_the_clock(page)
    start(page)
    assert len(asked) == 1
    page.clock.run_for(1900)
    assert len(asked) == 1
    said = page.locator(".redlock-live-status")
    hide(page, True)
    expect(said).to_have_text("Paused while this tab is hidden")
    page.clock.run_for(60_000)
    assert len(asked) == 1
    hide(page, False)
    expect(said).to_have_text("Refreshes every 5 s")
    answered(page)
    assert len(asked) == 2
    page.route(f"**{HELD}", lambda route: route.fulfill(status=500))
    page.clock.run_for(5000)
    expect(said).to_have_text("The last refresh failed, retrying")
    answered(page)
    page.unroute(f"**{HELD}")
    next_refresh(page)
    expect(said).to_have_text("Refreshes every 5 s")
    page.get_by_role("button", name="Stop live refresh").click()
    expect(page.get_by_role("button", name="Start live refresh")).to_be_visible()
    before = len(asked)
    page.clock.run_for(60_000)
    assert len(asked) == before
    # The browser logs the failure that was provoked here, once.
    (told,) = visitor.complaints
    assert "500" in told
    visitor.complaints.clear()


@pytest.mark.nightly
def test_refresh_of_the_page_of_one_lock(visitor: Visitor, masters: list[LocalMaster]) -> None:
    plant(masters, "order:1", ttl=600)
    page = visitor.open()
    page.get_by_role("link", name="order:1", exact=True).click()
    expect(page.locator("#redlock-picture .redlock-has-own")).to_have_count(5)
    stop_the_clock(page)
    start(page)
    free(masters[3:], "order:1")
    next_refresh(page)
    expect(page.locator("#redlock-picture .redlock-has-own")).to_have_count(3)
    free(masters, "order:1")
    next_refresh(page)
    expect(page.locator(".redlock-live-status")).to_contain_text("Stopped")
    page.reload()
    expect(page.locator(".messagelist").first).to_contain_text("It is no longer held.")
