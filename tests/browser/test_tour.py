"""The tour, in this process and with real masters: each step over HTTP, and in a real browser."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener, urlopen

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test.utils import override_settings
from playwright.sync_api import expect

from testproject.shop.serving import Answer, serving, shop_on
from testproject.shop.tour.demo_masters import DemoMasters, demo_masters
from testproject.shop.tour.run import Run
from testproject.shop.tour.steps import STEPS
from testproject.shop.tour.views import DEMO_USER
from tests.browser.conftest import HELD, Visitor, overflowing, shoot, violations
from tests.contrib.edited.pages import MOMENT
from tests.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from redlock_django.testing import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.slow]


STRICT = "tests.browser.site.strict"  # the middleware with a Content-Security-Policy


class Client:
    """A browser without JavaScript."""

    def __init__(self, site: str) -> None:
        self._site = site
        self._opener = build_opener(HTTPCookieProcessor())

    def get(self, path: str) -> str:
        with self._opener.open(self._site + path, timeout=60) as answer:
            page: str = answer.read().decode()
            return page

    def press(self, path: str, action: str = "", **fields: str) -> str:
        """Send the form of a page, and return the page to which it redirects."""
        (token, *_) = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', self.get(path))
        form = urlencode({"csrfmiddlewaretoken": token, **fields}).encode()
        with self._opener.open(Request(self._site + (action or path), form), timeout=60) as answer:
            page: str = answer.read().decode()
            return page


@pytest.fixture(scope="module")
def site(five_masters: list[LocalMaster], django_db_blocker: Any) -> Iterator[str]:
    for master in five_masters:
        master.resume()
        master.start()
        with master.client() as client:
            client.flushall()
    # For a busy machine; the TTL of a payment must be longer than two such timeouts.
    timeouts = {"MASTER_TIMEOUT": 0.9, "CONNECT_TIMEOUT": 5.0}
    with (
        django_db_blocker.unblock(),
        shop_on(five_masters, **timeouts),
        override_settings(DEBUG=True, MIDDLEWARE=[*settings.MIDDLEWARE, STRICT]),
        demo_masters(five_masters, outage=3600) as demo,
        serving() as site,
    ):
        User.objects.create(username=DEMO_USER, is_staff=True, is_superuser=True)
        yield site
        demo.repair()


@pytest.fixture
def client(site: str) -> Client:
    return Client(site)


@pytest.fixture(scope="module")
def page(site: str, chromium: Browser) -> Iterator[Page]:
    """A page of a visitor who has not logged in. Fails if there are errors in its console."""
    visitor = Visitor(chromium, site.rstrip("/"))
    yield visitor.open("/", user="")
    visitor.leave()
    assert visitor.complaints == []


def outcome(page: str) -> tuple[list[str], list[int], str]:
    """Return the statuses, the fences in the pictures, and the state of the order."""
    statuses = re.findall(r'<p class="status">(.*?)</p>', page)
    fences = [int(fence) for fence in re.findall(r"its fence is (\d+)", page)]
    (state,) = re.findall(r"is <strong>(\w+)</strong>, with\s+<strong>(\d payments?)", page)
    return statuses, fences, " ".join(state)


def states(page: str, picture: int = -1) -> list[str]:
    """Return the words about the masters in one picture, by default in the last."""
    every = re.findall(r'<g class="master" data-state="(\w+)"', page)
    return [every[start : start + 5] for start in range(0, len(every), 5)][picture]


def test_a_browser_that_asks_for_an_icon_gets_the_icon_of_the_shop(site: str) -> None:
    """Pages of the admin name none; a headless shell does not ask, all other browsers do."""
    with urlopen(f"{site}favicon.ico", timeout=60) as answer:
        assert answer.headers["Content-Type"] == "image/svg+xml"


def test_pay_twice(client: Client) -> None:
    page = client.press("tour/pay-twice/")
    statuses, fences, order = outcome(page)
    assert sorted(statuses) == ["200 OK", "423 Locked"]
    assert re.search(r"Retry-After: \d+ s", page)
    assert f"<li>fence {fences[0]}</li>" in page
    assert order == "paid 1 payment"
    assert "silent" not in states(page)


@pytest.mark.parametrize("slug", ["double-click", "retry"])
def test_requests_with_a_key(client: Client, slug: str) -> None:
    page = client.press(f"tour/{slug}/")
    statuses, fences, order = outcome(page)
    assert statuses == ["200 OK", "200 OK"]
    assert page.count("replayed: the view did not run again") == 1
    assert page.count(f"<li>fence {fences[0]}</li>") == 2
    assert order == "paid 1 payment"


def test_three_at_once(client: Client) -> None:
    page = client.press("tour/three-at-once/")
    statuses, fences, order = outcome(page)
    assert statuses == ["200 OK"] * 3 + ["423 Locked"] * 2
    assert page.count("&quot;limit-reached&quot;") == 2
    assert sorted(re.findall(r"<li>slot (\d)</li>", page)) == ["0", "1", "2"]
    assert sorted(re.findall(r"<li>fence (\d+)</li>", page)) == sorted(map(str, fences))
    assert len(set(fences)) == 3, "a picture for each slot"
    assert [states(page, slot).count("locked") >= 3 for slot in range(3)] == [True] * 3
    assert order == "open 0 payments"


def test_two_editors(client: Client) -> None:
    page = client.press("tour/two-editors/")
    statuses, _, order = outcome(page)
    assert statuses == ["302 Found", "200 OK"]
    assert "saved: total 2000" in page
    assert "Not saved: it was changed after you opened this page." in page
    assert re.search(rf"Bob, {MOMENT}: Changed “.+” — Changed Total", page)
    assert re.search(f"Bob read on his page: Anna has had this open since {MOMENT}", page)
    assert states(page, 0).count("locked") >= 3
    assert order == "open 0 payments"


def test_lost_lock(client: Client) -> None:
    page = client.press("tour/lost-lock/")
    statuses, fences, order = outcome(page)
    assert statuses == ["503 Service Unavailable", "200 OK"]
    assert "&quot;lock-lost&quot;" in page
    assert fences[0] < fences[1]
    assert order == "paid 1 payment"
    assert "silent" not in states(page)


def test_forced_release(client: Client) -> None:
    page = client.press("tour/forced-release/")
    statuses, fences, order = outcome(page)
    assert statuses == ["423 Locked", "200 OK"]
    assert "The job gets LockLost" in page
    assert len(fences) == 3
    assert fences == sorted(set(fences))
    assert order == "paid 1 payment"
    assert states(page).count("locked") >= 3
    page = client.press("tour/forced-release/", "tour/repair/", step="forced-release")
    assert "locked" not in states(page)


def test_quorum_lost(client: Client) -> None:
    page = client.press("tour/quorum-lost/")
    statuses, _, order = outcome(page)
    assert statuses == ["503 Service Unavailable", "200 OK"]
    assert order == "open 0 payments"
    assert states(page) == states(client.get("tour/masters/"))
    assert states(page).count("silent") == 3
    page = client.press("tour/quorum-lost/", "tour/repair/", step="quorum-lost")
    assert "silent" not in states(page)


def test_master_down(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may need longer than 0.5 s to report why a master has no vote.
    monkeypatch.setattr("redlock_django.backends.redis.backend.INSPECTION_TIMEOUT", 30.0)
    page = client.press("tour/master-down/")
    statuses, fences, order = outcome(page)
    assert sorted(statuses) == ["200 OK", "423 Locked"]
    assert len(fences) == 1
    assert order == "paid 1 payment"
    assert states(page, 0)[0] == "silent"
    assert states(page, 0).count("silent") == 1
    assert states(page)[0] == "waiting", "the killed one runs again, and its vote does not count"
    assert "silent" not in states(page)


def test_the_copy_is_shown_after_the_answer_it_repeats(django_db_blocker: Any) -> None:
    ran = Answer(200, 150.0, None, "{}")
    copy = replace(ran, replayed=True)

    class Shopper:
        def pay_together(self, *_: object) -> list[Answer]:
            return [copy, ran]  # the second request was the first to acquire the lock

    with django_db_blocker.unblock():
        run = Run(DemoMasters([]), cast("Any", Shopper()))
    run.pay_twice_at_once(key="a key")
    assert [answer["replayed"] for answer in run.answers] == [False, True]


def test_the_last_page_leads_on(client: Client) -> None:
    page = client.get(f"tour/{STEPS[-1].slug}/")
    ending = page[page.index('id="end"') :]
    links = re.findall(r'href="/([^"]*)"', ending[: ending.index("</section>")])
    found = {link: client.get(link) for link in links}
    assert "A tour of the locks" in found[""]
    assert "Log in" in found["admin/redlock_django/heldlock/"]
    assert found["docs/index.md"] == (ROOT / "docs/index.md").read_text()
    assert 'id="end"' not in client.get(f"tour/{STEPS[0].slug}/")


def walk(page: Page) -> Iterator[str]:
    """Follow the tour from its start page, press each button, and yield the slug of each page."""
    page.goto("/")
    yield "start"
    for step in STEPS:
        page.locator("a[rel=next]").click()
        expect(page.get_by_role("heading", level=1)).to_have_text(step.title)
        page.get_by_role("button", name=step.button).click()
        answers = page.locator(".answer .status")
        expect(answers).to_have_count(5 if step.slug == "three-at-once" else 2)
        expect(page.locator("#outcome .master")).not_to_have_count(0)
        yield step.slug
    expect(page.locator("a[rel=next]")).to_have_count(0)


def look(page: Page, slug: str, scheme: Literal["light", "dark"]) -> None:
    """Assert that a page fits into a wide and a narrow window."""
    page.emulate_media(color_scheme=scheme)
    for width in (1000, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert overflowing(page) == [], slug
        shoot(page, f"tour-{slug}-{scheme}-{width}")


@pytest.mark.nightly
def test_the_tour(page: Page) -> None:
    # The pages have the same templates; these four show all that there is.
    checked = {"start": "dark", "pay-twice": "light", "lost-lock": "dark", "master-down": "light"}
    for slug in walk(page):
        look(page, slug, "dark" if checked.get(slug) == "dark" else "light")
        if slug in checked:
            assert violations(page, "html") == [], slug
    page.locator("a[rel=prev]").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(STEPS[-2].title)


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_accessible(page: Page, scheme: Literal["light", "dark"]) -> None:
    for slug in walk(page):
        look(page, slug, scheme)
        assert violations(page, "html") == [], slug


def test_the_picture_is_refreshed(page: Page) -> None:
    page.goto("/tour/quorum-lost/")
    page.get_by_role("button", name="Stop three masters").click()
    silent = page.locator("#now .master[data-state=silent]")
    expect(silent).to_have_count(3)
    page.context.request.post("/tour/repair/", headers=same_origin(page))
    expect(silent).to_have_count(0)
    assert page.locator(".status").count() == 2, "the page was loaded again"


def same_origin(page: Page) -> dict[str, str]:
    token = page.locator("[name=csrfmiddlewaretoken]").first.input_value()
    return {"X-CSRFToken": token, "Referer": page.url}


def test_the_tour_goes_on_after_the_login(page: Page) -> None:
    page.goto("/tour/pay-twice/")
    page.get_by_role("button", name="Held locks in the admin").click()
    page.wait_for_url(f"**{HELD}")
    page.go_back()
    page.get_by_role("button", name="Pay twice").click()
    expect(page.locator(".answer .status")).to_have_count(2)
