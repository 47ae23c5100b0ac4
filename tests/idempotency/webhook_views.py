"""A webhook in every kind of view: it creates an order for each event that it gets."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client

from testproject.shop.models import Order

JSON = "application/json"
EVENT: dict[str, Any] = {"id": "evt_1", "data": {"object": {"id": "sub_7"}}}


def event_id(request: HttpRequest, **_: Any) -> Any:
    """Return the id in the body of an event."""
    return json.loads(request.body).get("id")


STRIPE: dict[str, Any] = {"key": event_id, "scope": "stripe"}


def receive(request: Any, **_: Any) -> HttpResponse:
    """Create an order, and show that the body can still be read."""
    Order.objects.create(number=f"A-{Order.objects.count() + 1}", total=1)
    event = request.data if hasattr(request, "data") else json.loads(request.body)
    return JsonResponse({"event": event, "orders": Order.objects.count()})


def send(body: Any = EVENT, url: str = "/7/", *, content_type: str = JSON, **headers: str) -> Any:
    """Send an event as its provider does: without a cookie, a user or an Idempotency-Key."""
    client = Client(raise_request_exception=False)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"webhook-id": "msg_1", **{name.replace("_", "-"): headers[name] for name in headers}}
    return client.generic("POST", url, data, content_type=content_type, headers=sent)
