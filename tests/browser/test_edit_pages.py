"""Two editors of one order, in real browsers: who has it open, and whose save is refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visitor, overflowing, serving, shoot, violations
from tests.contrib.edited.pages import MOMENT
from tests.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.slow]

LINE = "p[role=status]"
REFUSED = "Not saved: it was changed after you opened this page."


def change(number: int) -> str:
    return f"/admin/shop/order/{number}/change/"


@pytest.fixture(autouse=True)
def _locks_are_granted(masters: list[LocalMaster], visitor: Visitor) -> None:
    """Wait until the site trusts enough masters, which are empty, whoever has used them before."""
    wait_until_open(visitor.open(change(8), user="anna"))


def said(page: Page) -> Any:
    return page.locator(LINE)


def since(editor: str) -> Any:
    return re.compile(f"^{editor} has had this open since {MOMENT}$")


def reported(page: Page) -> Any:
    """Return a context manager that waits for the answer of a report."""
    return page.expect_response(re.compile("/edit-presence/"))


def is_told_open(page: Page) -> bool:
    """Make a page report, and return whether the answer says that it has its object open."""
    with reported(page) as answer:
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    return bool(answer.value.json().get("ticket"))  # "" if no lock can be acquired


def wait_until_open(page: Page) -> None:
    # One that was left before it had read its last answer counts as open for another minute.
    until(lambda: is_told_open(page), "the page has its object open", seconds=90)


def save(page: Page, button: str = "_save", **values: str) -> None:
    """Enter values, and press a button."""
    for name, value in values.items():
        enter(page, name, value)
    page.locator(f"[name={button}]").first.click()


def enter(page: Page, name: str, value: str) -> None:
    field = page.locator(f"[name={name}]")
    field.select_option(value) if name == "state" else field.fill(value)


def saves(page: Page, **values: str) -> None:
    """Enter values and save, which succeeds."""
    save(page, **values)
    page.wait_for_url("**/shop/order/")


def errors(page: Page) -> Any:
    return page.locator(".errorlist.nonfield li")


def test_two_editors(visitor: Visitor) -> None:
    hers = visitor.open(change(1), user="anna")
    wait_until_open(hers)
    his = visitor.open(change(1), user="bob")
    expect(said(his)).to_have_text(since("anna"))
    expect(said(hers)).to_be_empty()
    shoot(his, "edit-warning")
    before = [*visitor.complaints]
    assert violations(his, LINE) == []
    visitor.complaints[:] = before  # axe measures with styles that the policy forbids
    saves(his, total="2000")
    save(hers, total="1500")
    expect(errors(hers).first).to_have_text(REFUSED)
    expect(errors(hers).nth(1)).to_have_text(
        re.compile(r"^bob, .+: Changed “A-1” — Changed Total\.$")
    )
    expect(hers.locator("[name=total]")).to_have_value("1500")
    for width, scheme in ((375, "dark"), (1280, "light")):
        hers.set_viewport_size({"width": width, "height": 900})
        hers.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert overflowing(hers) == []
        shoot(hers, f"edit-conflict-{width}")
    save(hers, "_continue")
    expect(hers.locator(".messagelist .success")).to_contain_text("was changed successfully")
    expect(hers.locator("[name=total]")).to_have_value("1500")


def test_a_page_that_is_left_and_shown_again(visitor: Visitor) -> None:
    hers = visitor.open(change(3), user="anna")
    hers.fill("[name=total]", "1500")
    hers.goto("/admin/shop/order/")
    his = visitor.open(change(3), user="bob")
    wait_until_open(his)
    expect(said(his)).to_be_empty()
    with reported(hers):
        hers.go_back()
    expect(said(hers)).to_have_text(since("bob"))
    saves(his, total="2000")
    save(hers, total="1500")
    expect(errors(hers).first).to_have_text(REFUSED)
    saves(hers)
    expect(hers.get_by_role("row", name="A-3")).to_contain_text("1500")


@pytest.mark.parametrize("field", ["total", "state"])
def test_what_the_browser_restores_after_back_is_compared(visitor: Visitor, field: str) -> None:
    """Chromium loads a new page, and puts into it what was typed into the old one."""
    number, values = (6, ["1500", "2000"]) if field == "total" else (4, ["paid", "open"])
    hers = visitor.open(change(number), user="anna")
    saves(hers, **{field: values[0]})
    saves(visitor.open(change(number), user="bob"), **{field: values[1]})
    hers.go_back()
    expect(hers.locator(f"[name={field}]")).to_have_value(values[0])
    save(hers)
    expect(errors(hers).first).to_have_text(REFUSED)
    expect(hers.locator(f"[name={field}]")).to_have_value(values[0])


def test_a_page_of_the_back_forward_cache_reports_again(visitor: Visitor) -> None:
    """The admin forbids that cache, so the browser is only said to have used it."""
    hers = visitor.open(change(9), user="anna")
    wait_until_open(hers)
    his = visitor.open(change(9), user="bob")
    expect(said(his)).to_have_text(since("anna"))

    def has_left() -> bool:
        # A page that is hidden before it has read its last answer sends an older ticket.
        with hers.expect_request(re.compile("/edit-presence/")) as leaving:
            hers.evaluate("dispatchEvent(new PageTransitionEvent('pagehide', {persisted: true}))")
        assert 'name="leaving"' in (leaving.value.post_data or "")
        return is_told_open(his)

    until(has_left, "the page is left")
    expect(said(his)).to_be_empty()
    with reported(hers):
        hers.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}))")
    expect(said(hers)).to_have_text(since("bob"))


def test_a_session_that_has_ended(visitor: Visitor) -> None:
    """The report is answered with the login page: the page stays as it is."""
    hers = visitor.open(change(5), user="anna")
    wait_until_open(hers)  # so that the answer to its first report has come
    hers.fill("[name=total]", "1500")
    hers.context.clear_cookies(name="sessionid")
    with hers.expect_response(re.compile("/admin/login/")) as answer:
        hers.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    answer.value.finished()
    expect(hers.locator("[name=total]")).to_have_value("1500")
    visitor.complaints.clear()  # the browser may log the answer


def test_a_popup(visitor: Visitor) -> None:
    """An order is changed in the window that the form of a payment opens."""
    page = visitor.open("/admin/shop/payment/add/", user="anna")
    page.select_option("[name=order]", label="A-11")
    with page.expect_popup() as popup:
        page.locator("#change_id_order").click()
    window = popup.value
    window.wait_for_load_state()
    wait_until_open(window)
    his = visitor.open(change(11), user="bob")
    expect(said(his)).to_have_text(since("anna"))
    saves(his, number="B-11")
    save(window, number="C-11")
    expect(errors(window).first).to_have_text(REFUSED)
    with window.expect_event("close"):
        save(window)
    expect(page.locator("[name=order] option:checked")).to_have_text("C-11")


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
        saves(his, total="2000")
        save(hers, total="1500")
        expect(hers.locator("#content, #grp-content").first).to_contain_text(REFUSED)
        expect(hers.locator("[name=total]")).to_have_value("1500")
        shoot(hers, f"edit-{theme}")
        save(hers)
        hers.wait_for_url("**/shop/order/")
        visitor.leave()
