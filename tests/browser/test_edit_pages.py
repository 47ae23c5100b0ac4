"""Two editors of one order, in real browsers: who has it open, and whose version is saved."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import (
    Visitor,
    launch,
    log_in,
    overflowing,
    serving,
    shoot,
    violations,
)
from tests.ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.slow]

OURS = ".redlock-presence, .redlock-conflict"


def change(number: int) -> str:
    return f"/admin/shop/order/{number}/change/"


@pytest.fixture(autouse=True)
def _locks_are_granted(visitor: Visitor, five_masters: list[LocalMaster]) -> None:
    """Wait until the site trusts the masters, which another test may have emptied."""
    page = visitor.open(change(8), user="anna")

    def is_open() -> bool:
        with five_masters[0].client() as client:
            return any(b"shop.order:8" in key for key in client.scan_iter("*lock:edit*"))

    while not is_open():
        page.wait_for_timeout(100)
        page.reload()


def said(page: Page) -> Any:
    return page.locator(".redlock-presence [role=status]")


def becomes_visible(page: Page) -> None:
    """As after another tab was shown: the page reports at once."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def save(page: Page) -> None:
    page.locator("[name=_save]").click()


def assert_accessible(visitor: Visitor, page: Page) -> None:
    before = [*visitor.complaints]
    assert violations(page, OURS) == []
    visitor.complaints[:] = before  # axe measures with styles that the policy forbids


def test_two_editors(visitor: Visitor) -> None:
    hers = visitor.open(change(1), user="anna")
    expect(said(hers)).to_be_empty()
    his = visitor.open(change(1), user="bob")
    expect(said(his)).to_have_text(_since("anna"))
    shoot(his, "edit-warning")
    assert_accessible(visitor, his)
    his.get_by_role("button", name="Edit anyway").focus()
    his.keyboard.press("Enter")
    expect(said(his)).to_be_empty()
    becomes_visible(hers)
    expect(said(hers)).to_have_text(_since("bob"))
    his.fill("[name=total]", "2000")
    save(his)
    his.wait_for_url("**/shop/order/")
    hers.fill("[name=total]", "1500")
    save(hers)
    conflict = hers.locator(".redlock-conflict tbody tr")
    expect(conflict).to_have_text(re.compile(r"Total\s*1500\s*2000 \(new\)"))
    expect(hers.locator("[name=total]")).to_have_value("1500")
    for width, scheme in ((375, "dark"), (1280, "light")):
        hers.set_viewport_size({"width": width, "height": 900})
        hers.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert overflowing(hers) == []
        assert_accessible(visitor, hers)
        shoot(hers, f"edit-conflict-{width}")
    save(hers)
    hers.wait_for_url("**/shop/order/")


def _since(editor: str) -> Any:
    return re.compile(rf"^{editor} has had this open since \d\d:\d\d$")


def test_a_page_that_is_left_and_shown_again(visitor: Visitor) -> None:
    hers = visitor.open(change(2), user="anna")
    hers.goto("/admin/shop/order/")
    his = visitor.open(change(2), user="bob")
    expect(said(his)).to_be_empty()
    hers.go_back()
    expect(said(hers)).to_have_text(_since("bob"))


def test_a_row_that_was_deleted(visitor: Visitor) -> None:
    hers = visitor.open(change(7), user="anna")
    hers.fill("[name=number]", "typed")
    his = visitor.open("/admin/shop/order/7/delete/", user="bob")
    his.click("#content [type=submit]")
    his.wait_for_url("**/shop/order/")
    becomes_visible(hers)
    expect(said(hers)).to_contain_text("this order was deleted after you opened this page.")
    expect(hers.locator("[name=number]")).to_have_value("typed")
    visitor.complaints.clear()  # the browser may log the answer


def test_a_session_that_has_ended(visitor: Visitor) -> None:
    hers = visitor.open(change(3), user="anna")
    hers.fill("[name=total]", "1500")
    hers.context.clear_cookies(name="sessionid")
    becomes_visible(hers)
    expect(said(hers)).to_contain_text("You are logged out")
    expect(hers.locator("[name=total]")).to_have_value("1500")
    other_tab = hers.context.new_page()
    for user in ("clerk", "reader"):  # the one may not open the page, the other may only read it
        other_tab.goto("/admin/login/?next=/admin/")
        log_in(other_tab, user)
        becomes_visible(hers)
        expect(said(hers)).to_have_text("You may no longer edit this. What you entered stays here.")
        hers.context.clear_cookies(name="sessionid")
    other_tab.goto("/admin/login/?next=/admin/")
    log_in(other_tab, "anna")
    becomes_visible(hers)
    expect(said(hers)).to_be_empty()
    save(hers)
    hers.wait_for_url("**/shop/order/")
    expect(hers.get_by_role("row", name="A-3")).to_contain_text("1500")
    visitor.complaints.clear()  # the browser may log the answers


@pytest.mark.nightly
def test_back_after_a_deployment(
    chromium: Browser, five_masters: list[LocalMaster], tmp_path: Path
) -> None:
    """The next release has other static files. The page that was open is renewed and compared."""
    port, database = free_port(), str(tmp_path / "db")
    with serving(five_masters, port, SHOP_DATABASE=database, SITE_RELEASE="1") as site:
        visitor = Visitor(chromium, site)
        hers = visitor.open(change(1), user="anna")
        hers.fill("[name=total]", "1500")
        while visitor.open(change(1), user="bob").get_by_text(_since("anna")).count() == 0:
            hers.wait_for_timeout(200)  # until the site trusts its masters
            becomes_visible(hers)
    becomes_visible(hers)
    expect(said(hers)).to_contain_text("The server cannot be reached.")
    with serving(five_masters, port, SHOP_DATABASE=database, SITE_RELEASE="2"):
        his = visitor.open(change(1), user="bob")
        assert "/static2/" in his.content()
        expect(said(his)).to_have_text(_since("anna"))
        becomes_visible(hers)
        expect(said(hers)).to_be_empty()
        his.fill("[name=total]", "2000")
        save(his)
        his.wait_for_url("**/shop/order/")
        save(hers)
        expect(hers.locator(".redlock-conflict tbody")).to_contain_text("2000")
        expect(hers.locator("[name=total]")).to_have_value("1500")
        save(hers)
        hers.wait_for_url("**/shop/order/")
        visitor.leave()


@pytest.mark.nightly
def test_a_closed_laptop(
    visitor: Visitor, site: str, five_masters: list[LocalMaster], chromium: Browser, tmp_path: Path
) -> None:
    """A browser that is stopped renews nothing; when it goes on, it overwrites nothing."""
    hers = visitor.open(change(5), user="anna")
    with launch(chromium.browser_type, f"--laptop={tmp_path}") as laptop:
        his = Visitor(laptop, site).open(change(6), user="bob")
        process = process_with(str(tmp_path))
        os.kill(process, signal.SIGSTOP)
        try:
            for master in five_masters:  # the TTL of a minute passes
                with master.client() as client:
                    client.delete(*client.scan_iter("*lock:edit*"))
            hers.goto(change(6))
            expect(said(hers)).to_be_empty()
            hers.fill("[name=total]", "1700")
            save(hers)
            hers.wait_for_url("**/shop/order/")
        finally:
            os.kill(process, signal.SIGCONT)
        his.fill("[name=total]", "1800")
        save(his)
        expect(his.locator(".redlock-conflict")).to_contain_text("1700")


@pytest.mark.nightly
@pytest.mark.parametrize("theme", ["unfold", "grappelli"])
def test_another_theme(visitor: Visitor, five_masters: list[LocalMaster], theme: str) -> None:
    pytest.importorskip(theme)
    with serving(five_masters, SITE_THEME=theme) as site:
        hers = visitor.open(change(1), user="anna", on=site)
        his = visitor.open(change(1), user="bob", on=site)
        while "anna" not in said(his).inner_text():
            his.wait_for_timeout(200)  # until the site trusts its masters
            hers.reload()
            his.reload()
        his.fill("[name=total]", "2000")
        save(his)
        his.wait_for_url("**/shop/order/")
        hers.fill("[name=total]", "1500")
        save(hers)
        expect(hers.locator(".redlock-conflict tbody")).to_contain_text("2000")
        expect(hers.locator("[name=total]")).to_have_value("1500")
        shoot(hers, f"edit-{theme}")
        visitor.leave()


@pytest.mark.nightly
@pytest.mark.skipif(django.VERSION < (6, 1), reason="Django 6.1 gives its admin nonces")
def test_a_page_needs_only_elements_with_a_nonce(
    chromium: Browser, five_masters: list[LocalMaster]
) -> None:
    with serving(five_masters, SITE_NONCES="1") as address:
        visitor = Visitor(chromium, address)
        page = visitor.open(change(1), user="anna")
        becomes_visible(page)
        style = "getComputedStyle(document.querySelector('.redlock-presence p')).margin"
        assert page.evaluate(style) == "0px"
        visitor.leave()
    assert visitor.complaints == []


def process_with(argument: str) -> int:
    """Return the process of a browser that was started with an argument."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if argument in (line := entry.read_text()) and "--type=" not in line:
                return int(entry.parent.name)
    raise AssertionError("the browser does not run")
