"""Each step of the tour, in this process, over HTTP and with real masters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest
from django.test.utils import override_settings

from testproject.shop.serving import serving, shop_on
from testproject.shop.tour.demo_masters import demo_masters
from testproject.shop.tour.views import DEMO_USER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redlock_django.testing import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.slow]


class Visitor:
    """A browser without JavaScript."""

    def __init__(self, site: str) -> None:
        self._site = site
        self._opener = build_opener(HTTPCookieProcessor())

    def get(self, path: str) -> str:
        with self._opener.open(self._site + path, timeout=60) as answer:
            page: str = answer.read().decode()
            return page

    def press(self, path: str, action: str = "", **fields: str) -> str:
        """Send a form of a page, and return the page to which it redirects."""
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
    with django_db_blocker.unblock(), shop_on(five_masters), serving() as site:
        with demo_masters(five_masters, outage=3600) as demo:
            yield site
        demo.repair()


@pytest.fixture
def visitor(site: str) -> Visitor:
    return Visitor(site)


def outcome(page: str) -> tuple[list[str], list[int], str]:
    """Return the statuses, the fences in the pictures, and the state of the order."""
    statuses = re.findall(r'<p class="status">(.*?)</p>', page)
    fences = [int(fence) for fence in re.findall(r"with fence (\d+)", page)]
    (state,) = re.findall(r"is <strong>(\w+)</strong>, with\s+<strong>(\d payments?)", page)
    return statuses, fences, " ".join(state)


def states(page: str) -> list[str]:
    """Return the words about the masters in the last picture."""
    return re.findall(r'<g class="master" data-state="(\w+)"', page)[-5:]


def test_pay_twice(visitor: Visitor) -> None:
    page = visitor.press("tour/pay-twice/")
    statuses, fences, order = outcome(page)
    assert sorted(statuses) == ["200 OK", "423 Locked"]
    assert re.search(r"Retry-After: \d+ s", page)
    assert f"<li>fence {fences[0]}</li>" in page
    assert order == "paid 1 payment"
    assert states(page) == ["free"] * 5


@pytest.mark.parametrize("slug", ["double-click", "retry"])
def test_requests_with_a_key(visitor: Visitor, slug: str) -> None:
    page = visitor.press(f"tour/{slug}/")
    statuses, fences, order = outcome(page)
    assert statuses == ["200 OK", "200 OK"]
    assert page.count("replayed: the view did not run again") == 1
    assert page.count(f"<li>fence {fences[0]}</li>") == 2
    assert order == "paid 1 payment"


def test_lost_lock(visitor: Visitor) -> None:
    page = visitor.press("tour/lost-lock/")
    statuses, fences, order = outcome(page)
    assert statuses == ["503 Service Unavailable", "200 OK"]
    assert "&quot;lock-lost&quot;" in page
    assert fences[0] < fences[1]
    assert order == "paid 1 payment"
    assert states(page) == ["free"] * 5


def test_forced_release(visitor: Visitor) -> None:
    page = visitor.press("tour/forced-release/")
    statuses, fences, order = outcome(page)
    assert statuses == ["423 Locked", "200 OK"]
    assert "The job gets LockLost" in page
    assert fences[0] < fences[1]
    assert order == "paid 1 payment"


def test_quorum_lost(visitor: Visitor) -> None:
    page = visitor.press("tour/quorum-lost/")
    statuses, _, order = outcome(page)
    assert statuses == ["503 Service Unavailable", "200 OK"]
    assert order == "open 0 payments"
    assert states(page) == states(visitor.get("tour/masters/"))
    assert states(page).count("silent") == 3
    page = visitor.press("tour/quorum-lost/", "tour/repair/", step="quorum-lost")
    assert "silent" not in states(page)


def test_master_down(visitor: Visitor) -> None:
    page = visitor.press("tour/master-down/")
    statuses, fences, order = outcome(page)
    assert sorted(statuses) == ["200 OK", "423 Locked"]
    assert len(fences) == 1
    assert order == "paid 1 payment"
    assert states(page) == ["silent", *["free"] * 4]
    page = visitor.press("tour/master-down/", "tour/repair/", step="master-down")
    assert states(page) == ["waiting", *["free"] * 4]


def test_the_admin_is_one_button_away(visitor: Visitor) -> None:
    from django.contrib.auth.models import User

    User.objects.create(username=DEMO_USER, is_staff=True, is_superuser=True)
    with override_settings(DEBUG=True):
        page = visitor.press("tour/pay-twice/", "tour/login/", page="heldlock")
    assert "Held locks" in page
