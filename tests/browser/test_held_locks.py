"""Held locks in a real browser: layout, keyboard, colors, themes, accessibility, no scripts.

What the pages say and do is in tests/operate/.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Literal

import django
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import (
    Visitor,
    overflowing,
    serving,
    shoot,
    violations,
)
from tests.operate.planted import on, plant, plant_value

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.slow]

PHONE: dict[str, Any] = {"viewport": {"width": 375, "height": 800}}
RECORDS = "/admin/redlock_django/idempotencyrecord/"
LONG = "tenant:" + "7f3a9c:" * 30 + "end"


def everyday(masters: list[LocalMaster]) -> None:
    """Plant a mix of locks in all states."""
    for number in range(8):
        plant(masters, f"order:{1000 + number}", token=f"{number:x}", ttl=600 + 7 * number)
    plant(masters[:3], "invoice:2026-11", token="c", ttl=500, host="web2", user="")
    plant(masters[:2], "user:17", token="d", ttl=510, at=time.time() - 2 * 3600 - 122)
    plant(masters, LONG, token="e", ttl=9000, host="a-host-with-a-very-long-name.example.org")
    plant(masters[:2], "stock:42", token="1", ttl=420)
    plant(masters[2:4], "stock:42", token="2", ttl=300, host="web2")
    plant(masters[4:], "stock:42", token="3", ttl=120, host="worker-9")
    plant(masters, "export[1]", token="8", ttl=600, limit=3, path="/export/1/")
    plant(masters, "export[4]", token="9", ttl=600, limit=5, path="/export/4/")


def row(page: Page, resource: str) -> Locator:
    name = page.get_by_role("rowheader").filter(has=page.get_by_text(resource, exact=True))
    return page.locator("#redlock-locks tbody tr", has=name)


def select(page: Page, *resources: str) -> None:
    """Select locks, and go to the page that asks whether to release them."""
    for resource in resources:
        row(page, resource).get_by_role("checkbox").first.check()
    page.get_by_role("button", name="Release selected locks…").click()
    expect(page.get_by_role("button", name=re.compile("^Yes"))).to_be_visible()


def yes(page: Page) -> None:
    page.get_by_role("button", name=re.compile("^Yes")).click()
    expect(page.locator("#redlock-quorum")).to_be_visible()


def cut_off(page: Page) -> list[str]:
    """Return what is wider than its place on the list of held locks."""
    wider = "parts => parts.filter(part => part.scrollWidth > part.clientWidth + 1)"
    cut: list[str] = page.eval_on_selector_all(
        ".redlock, #redlock-locks :is(th, td), .redlock-bar",
        f"parts => ({wider})(parts).filter(part => !part.closest('thead'))"
        ".map(part => `${part.className} ${part.innerText}`)",
    )
    return [*cut, *overflowing(page)]


def tour(page: Page, name: str) -> None:
    """Open the list and the confirmation, and save a screenshot of each."""
    shoot(page, f"{name}-list")
    assert cut_off(page) == []
    select(page, "stock:42")
    shoot(page, f"{name}-confirm")
    assert cut_off(page) == []


@pytest.mark.nightly
def test_light_dark_phone_and_right_to_left(visitor: Visitor, masters: list[LocalMaster]) -> None:
    everyday(masters)
    tour(visitor.open(), "light")
    page = visitor.open(color_scheme="dark")
    for what in ("#redlock-quorum p", "#redlock-count", "#redlock-locks td[data-label]"):
        shade = page.eval_on_selector(what, "element => getComputedStyle(element).color")
        assert min(map(int, re.findall(r"\d+", shade)[:3])) > 170, (what, shade)
    tour(page, "dark")
    tour(visitor.open(**PHONE), "phone")
    page = visitor.open(locale="ar", **PHONE)
    expect(page.locator("html")).to_have_attribute("dir", "rtl")
    tour(page, "rtl-phone")
    tour(visitor.open(locale="ar"), "rtl")


def test_no_column_is_cut(visitor: Visitor, masters: list[LocalMaster]) -> None:
    everyday(masters)
    plant_value(masters, "order:2000", "of another program", ttl=600)
    page = visitor.open()
    sidebar = page.locator("#toggle-nav-sidebar")
    for width in (1280, 1265, 1024, 900, 768, 375):
        page.set_viewport_size({"width": width, "height": 900})
        assert cut_off(page) == [], width
        shoot(page, f"list-{width}")
        if sidebar.is_visible():
            sidebar.click()
            page.wait_for_function("document.querySelector('#nav-sidebar').offsetLeft < 0")
            assert cut_off(page) == [], f"{width} without the sidebar"
            sidebar.click()


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
def test_a_lost_quorum_is_the_first_thing_on_the_page(
    visitor: Visitor, masters: list[LocalMaster], scheme: str
) -> None:
    everyday(masters)
    page = visitor.open()
    quorum = page.locator("#redlock-quorum")
    expect(quorum).to_have_text("Quorum: all 5 servers are up, 3 are needed.")
    masters[0].kill()
    page.reload()
    expect(quorum).to_contain_text("Quorum: 4 of 5 servers are counted, 3 are needed.")
    expect(quorum).to_contain_text("Locks are still granted, and 1 more server may fail.")
    shoot(page, "degraded")
    for master in masters[1:3]:
        master.kill()
    page = visitor.open(color_scheme=scheme)
    quorum = page.locator("#redlock-quorum")
    expect(quorum).to_contain_text("No quorum: locks are refused now.")
    expect(quorum.locator("li")).to_have_count(3)
    expect(quorum).to_contain_text("refused the connection. Start it")
    expect(page.locator("#redlock-count")).to_contain_text("known from the servers that answered")
    top = "selector => document.querySelector(selector).getBoundingClientRect().top"
    assert page.evaluate(top, "#redlock-quorum") < page.evaluate(top, "#redlock-count")
    assert violations(page) == []
    shoot(page, f"lost-{scheme}")
    page.set_viewport_size(PHONE["viewport"])
    shoot(page, f"lost-{scheme}-phone")
    assert overflowing(page) == []


def test_a_lock_can_be_released_by_keyboard_only(
    visitor: Visitor, masters: list[LocalMaster]
) -> None:
    plant(masters, "order:1", ttl=600)
    page = visitor.open()

    def tab_to(what: str) -> None:
        for _ in range(80):
            page.keyboard.press("Tab")
            if page.evaluate("what => document.activeElement.matches(what)", what):
                return
        raise AssertionError(f"the keyboard does not reach {what}")

    tab_to("#redlock-locks input")
    page.keyboard.press("Space")
    tab_to(".redlock-doing button")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Yes, release it")).to_be_visible()
    tab_to(".redlock-danger")
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist")).to_contain_text("Released: order:1.")
    assert on(masters, "order:1") == 0


@pytest.mark.nightly
@pytest.mark.parametrize("theme", ["unfold", "grappelli"])
def test_the_page_works_in_another_theme(
    visitor: Visitor, masters: list[LocalMaster], theme: str
) -> None:
    everyday(masters)
    with serving(masters, SITE_THEME=theme) as site:
        tour(visitor.open(on=site, color_scheme="dark"), f"{theme}-dark")
        tour(visitor.open(on=site, **PHONE), f"{theme}-phone")
        page = visitor.open(on=site)
        assert violations(page) == []
        tour(page, theme)
        assert violations(page) == []
        yes(page)
        expect(page.get_by_text("Released: stock:42.")).to_be_visible()
        select(page, "order:1000", "order:1001")
        yes(page)
        assert on(masters, "order:1000") == 0
        visitor.leave()


@pytest.mark.skipif(django.VERSION < (6, 1), reason="Django 6.1 gives its admin nonces")
def test_only_elements_with_a_nonce_are_needed(
    chromium: Browser, masters: list[LocalMaster]
) -> None:
    """Under such a policy the browser blocks every other style and script, and complains."""
    plant(masters, "order:1", ttl=600)
    with serving(masters, SITE_NONCES="1") as address:
        visitor = Visitor(chromium, address)
        page = visitor.open()
        expect(page.locator(".redlock-bar")).to_have_css("display", "flex")
        page = visitor.open("/admin/shop/order/1/change/", user="anna")
        expect(page.locator("p[role=status]")).to_be_attached()  # of the script of edit locks
        visitor.leave()
    assert visitor.complaints == []


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible(
    visitor: Visitor, masters: list[LocalMaster], scheme: Literal["light", "dark"]
) -> None:
    everyday(masters)
    page = visitor.open(color_scheme=scheme)
    assert violations(page) == []
    select(page, "stock:42")
    assert violations(page) == []


def test_uncertain_requests_are_resolved(visitor: Visitor) -> None:
    page = visitor.open(RECORDS)
    expect(page.locator("#result_list tbody tr")).to_have_count(4)
    page.get_by_role("link", name="uncertain", exact=True).click()
    page.locator("#result_list input.action-select").check()
    page.select_option("select[name=action]", "mark_done")
    page.get_by_role("button", name="Run").or_(page.get_by_role("button", name="Go")).click()
    expect(page.locator("#content")).to_contain_text("never processed again")
    assert violations(page, "#content") == []
    page.get_by_role("link", name="No, take me back").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
