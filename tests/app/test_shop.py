"""The pages of the shop and of its tour that need no masters."""

from __future__ import annotations

import re
import threading
from uuid import uuid4

import pytest
from django.test import Client
from django.urls import reverse

from redlock_django.testing import assert_locked, assert_not_locked
from testproject.shop.models import Order
from testproject.shop.tour.demo_masters import DemoMasters, demo_masters
from testproject.shop.tour.steps import STEPS

pytestmark = pytest.mark.django_db

PAGES = ["/", *(f"/tour/{step.slug}/" for step in STEPS)]


class FakeMaster:
    """A master that only counts its starts."""

    def __init__(self) -> None:
        self.alive, self.paused = True, False
        self.started = threading.Event()

    def kill(self) -> None:
        self.alive = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def start(self) -> None:
        if not self.alive:
            self.alive = True
            self.started.set()


def fakes() -> list[FakeMaster]:
    return [FakeMaster() for _ in range(5)]


def test_the_start_page_links_to_each_step(client: Client) -> None:
    page = client.get("/").content.decode()
    links = re.findall(r'<li><a href="(/tour/[^"]+)">([^<]+)</a>', page)
    assert links == [(reverse("shop:step", args=[step.slug]), step.title) for step in STEPS]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_without_masters_says_what_to_start(client: Client, path: str) -> None:
    page = client.get(path).content.decode()
    assert "<code>python manage.py demo --tour</code>" in page
    assert "<button" not in page
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", page)
    assert not re.search(r"<script(?![^>]*\ssrc=)", page)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.slug)
def test_a_step_says_three_sentences(client: Client, step: object) -> None:
    page = client.get(reverse("shop:step", args=[step.slug])).content.decode()  # type: ignore[attr-defined]
    sentences = page.split('<div class="sentences">')[1].split("</div>")[0]
    found = re.findall(r"<p>(.*?)</p>", sentences, re.DOTALL)
    assert len(found) == 3
    assert all(len(re.findall(r"\.(?=\s|$)", text)) == 1 for text in found)


@pytest.mark.parametrize("name", ["masters", "repair", "login"])
def test_nothing_can_be_done_without_masters(client: Client, name: str) -> None:
    path = reverse(f"shop:{name}")
    answer = client.get(path) if name == "masters" else client.post(path)
    assert answer.status_code == 404
    assert client.post(reverse("shop:step", args=["pay-twice"])).status_code == 404
    assert client.get("/tour/none/").status_code == 404


def test_no_user_is_logged_in_without_debug(client: Client) -> None:
    with demo_masters([]):
        assert client.post(reverse("shop:login")).status_code == 404


def test_masters_are_repaired_after_the_visitor_has_left(redlock_memory: object) -> None:
    masters = fakes()
    demo = DemoMasters(masters, outage=0)  # type: ignore[arg-type]
    with demo.step(lasts=True):
        demo.kill_one()
        demo.hang_three()
    assert masters[0].started.wait(60)
    with demo.step():  # waits until the repair is over
        pass
    assert not any(master.paused for master in masters)


def test_masters_are_repaired_by_the_next_step(redlock_memory: object) -> None:
    masters = fakes()
    demo = DemoMasters(masters, outage=3600)  # type: ignore[arg-type]
    with demo.step(lasts=True):
        demo.kill_one()
        demo.hang_three()
    assert [master.alive and not master.paused for master in masters] == [False] * 4 + [True]
    with demo.step():
        assert all(master.alive and not master.paused for master in masters)


def test_a_job_ends_when_the_masters_are_repaired(redlock_memory: object) -> None:
    demo = DemoMasters(fakes())  # type: ignore[arg-type]
    demo.hold("order:1")
    assert_locked("order:1")
    demo.repair()
    assert_not_locked("order:1")


def test_masters_are_repaired_after_an_error(redlock_memory: object) -> None:
    masters = fakes()
    demo = DemoMasters(masters, outage=3600)  # type: ignore[arg-type]
    masters[0].kill()

    def fail() -> None:
        with demo.step(lasts=True):
            demo.hang_three()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not any(master.paused for master in masters)


def test_a_form_that_is_sent_twice_pays_once(client: Client, redlock_memory: object) -> None:
    order = Order.objects.create(number="A-1", total=1234)
    client.get("/")  # the visitor gets an ID, to which the key belongs
    key = str(uuid4())
    answers = [
        client.post(reverse("shop:pay", args=[order.pk]), {"idempotency_key": key})
        for _ in range(2)
    ]
    first, again = (answer.json() for answer in answers)
    assert first == again
    assert (first["order"], first["paid"]) == ("A-1", 1234)
    assert first["fence"] > 0
    assert [answer["Idempotent-Replayed"] for answer in answers] == ["false", "true"]
    assert order.payments.count() == 1
    unknown = Client().post(reverse("shop:pay", args=[order.pk]), {"idempotency_key": key})
    assert unknown.status_code == 409, "the key of another visitor must not be accepted"


def test_get_does_not_pay(client: Client) -> None:
    assert client.get(reverse("shop:pay", args=[1])).status_code == 405
