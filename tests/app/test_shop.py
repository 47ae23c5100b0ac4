"""The pages of the shop that need no masters."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from testproject.shop.models import Order, Payment

pytestmark = pytest.mark.django_db


def test_shop_without_orders(client: Client) -> None:
    assert "There are no orders yet" in client.get("/").content.decode()


def test_the_page_has_no_inline_script_or_style(client: Client) -> None:
    Order.objects.create(number="A-1", total=1234)
    page = client.get("/").content.decode()
    assert "€ 12.34" in page
    assert "Pay twice at once" in page
    assert re.search(r'name="idempotency_key" value="[0-9a-f-]{36}"', page)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", page)
    assert not re.search(r"<script(?![^>]*\ssrc=)", page)


def test_a_new_order_by_form_and_by_json(client: Client) -> None:
    by_form = client.post(reverse("shop:new-order"), headers={"accept": "text/html"})
    assert by_form.headers["Location"] == "/"
    by_json = client.post(reverse("shop:new-order"), headers={"accept": "application/json"})
    assert by_json.status_code == 201
    assert Order.objects.filter(state=Order.State.OPEN).count() == 2


def test_the_facts_of_an_order(client: Client) -> None:
    order = Order.objects.create(number="A-1", total=1234, state=Order.State.PAID)
    Payment.objects.create(order=order, amount=1234)
    facts = client.get(reverse("shop:order", args=[order.pk])).json()
    assert facts == {"order": "A-1", "state": "paid", "payments": 1}


def test_a_form_that_is_sent_twice_pays_once(client: Client, redlock_memory: object) -> None:
    order = Order.objects.create(number="A-1", total=1234)
    page = client.get("/").content.decode()
    [key] = re.findall(r'name="idempotency_key" value="([^"]+)"', page)
    answers = [
        client.post(reverse("shop:pay", args=[order.pk]), {"idempotency_key": key})
        for _ in range(2)
    ]
    assert [answer.json() for answer in answers] == [{"order": "A-1", "paid": 1234}] * 2
    assert [answer["Idempotent-Replayed"] for answer in answers] == ["false", "true"]
    assert order.payments.count() == 1
    unknown = Client().post(reverse("shop:pay", args=[order.pk]), {"idempotency_key": key})
    assert unknown.status_code == 409, "the key of another visitor must not be accepted"


def test_get_does_not_pay(client: Client) -> None:
    assert client.get(reverse("shop:pay", args=[1])).status_code == 405
