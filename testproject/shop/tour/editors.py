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
    """One editor with a browser without JavaScript."""

    def __init__(self, name: str) -> None:
        user, _ = User.objects.get_or_create(
            username=name.lower(), first_name=name, is_staff=True, is_superuser=True
        )
        self._client = Client(SERVER_NAME="127.0.0.1")
        self._client.force_login(user)

    def open(self, order: Order) -> str:
        """Open the change form of an order; return what it says of another editor."""
        self._order = order
        self._path = reverse("admin:shop_order_change", args=[order.pk])
        page = self._client.get(self._path).content.decode()
        self._version = unescape(re.findall(r'name="_edit_version" value="([^"]*)"', page)[0])
        return _text(page, r'<p role="status"[^>]*>(.*?)</p>')

    def save(self, total: int) -> Answer:
        """Save the form with another total."""
        began = time.perf_counter()
        entered = {"number": self._order.number, "total": total, "state": "open"}
        response = self._client.post(self._path, {**entered, "_edit_version": self._version})
        said = _text(response.content.decode(), r'<div class="redlock-conflict">(.*?)</div>')
        took = (time.perf_counter() - began) * 1000
        return Answer(response.status_code, took, None, said or f"saved: total {total}")


def _text(page: str, pattern: str) -> str:
    found = re.search(pattern, page, re.DOTALL)
    return unescape(" ".join(re.sub("<[^>]*>", " ", found[1]).split())) if found else ""
