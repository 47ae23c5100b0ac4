"""The shop's pages, as far as they need no master."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from django.urls import reverse

from testproject.shop.models import Order, Payment

if TYPE_CHECKING:
    from django.test import Client

pytestmark = pytest.mark.django_db


def test_an_empty_shop_says_what_to_do(client: Client) -> None:
    assert "There is no order yet" in client.get("/").content.decode()


def test_the_page_has_no_inline_script_or_style(client: Client) -> None:
    Order.objects.create(number="A-1", total=1234)
    page = client.get("/").content.decode()
    assert "€ 12.34" in page
    assert "Pay twice at once" in page
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


def test_reading_does_not_pay(client: Client) -> None:
    assert client.get(reverse("shop:pay", args=[1])).status_code == 405
