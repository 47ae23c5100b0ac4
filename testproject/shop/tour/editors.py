"""Two editors of the tour, who have one order open in the admin."""

from __future__ import annotations

import re
import time
from html import unescape
from typing import TYPE_CHECKING

from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from testproject.shop.serving import Answer

if TYPE_CHECKING:
    from testproject.shop.models import Order


class Editor:
    """One editor, who sends what a browser would send."""

    def __init__(self, name: str) -> None:
        user, _ = User.objects.get_or_create(
            username=name.lower(), first_name=name, is_staff=True, is_superuser=True
        )
        self._client = Client(SERVER_NAME="127.0.0.1")
        self._client.force_login(user)

    def open(self, order: Order) -> str:
        """Open the change form of an order; return what it says of another editor."""
        self._order = order
        path = reverse("admin:shop_order_change", args=[order.pk])
        page = self._client.get(path).content.decode()
        (action,) = re.findall(r'<form[^>]* action="([^"]*_edit_seen=[^"]*)"', page)
        (report,) = re.findall(r'data-url="([^"]*)"', page)
        self._path = f"{path}{unescape(action)}"
        said: str = self._client.post(unescape(report)).json().get("message", "")
        return said

    def save(self, total: int) -> Answer:
        """Save the form with another total."""
        began = time.perf_counter()
        entered = {"number": self._order.number, "total": total, "state": "open"}
        response = self._client.post(self._path, entered)
        took = (time.perf_counter() - began) * 1000
        errors = _text(response.content.decode(), r'<ul class="errorlist nonfield"[^>]*>(.*?)</ul>')
        return Answer(response.status_code, took, None, errors or f"saved: total {total}")


def _text(page: str, pattern: str) -> str:
    found = re.search(pattern, page, re.DOTALL)
    return unescape(" ".join(re.sub("<[^>]*>", " ", found[1]).split())) if found else ""
