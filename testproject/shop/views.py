"""The views of the shop. No order must be charged twice."""

from __future__ import annotations

from uuid import uuid4

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from redlock_django import idempotent, lock, lock_resource, resource
from testproject.shop.models import Order, Payment

_SLOW = 3.0  # seconds

REPORTS = 3
"""How many reports about one order may be made at once."""


def visitor(request: HttpRequest, **_: object) -> str:
    """Return an ID for a visitor without a login, to which an idempotency key belongs."""
    known: str = request.session.setdefault("visitor", str(uuid4()))
    return known


@require_POST
@idempotent(anonymous_scope=visitor)
@lock_resource("order:<int:pk>")
def pay(request: HttpRequest, pk: int) -> HttpResponse:
    """Charge the order once. A request that is repeated with its key gets the same response."""
    return _charge(pk, settings.SHOP_PAYMENT_SECONDS)


@require_POST
@lock_resource("order:<int:pk>", ttl=2)
def pay_slowly(request: HttpRequest, pk: int) -> HttpResponse:
    """Charge the order at a provider that takes longer than a lock lives without renewal."""
    return _charge(pk, _SLOW)


# Not in a transaction: a lock that a view acquires itself is acquired before BEGIN.
@require_POST
@transaction.non_atomic_requests
def report(request: HttpRequest, pk: int) -> HttpResponse:
    """Make a report about the order; three may be made at once."""
    with lock(resource("report:<int:pk>", pk=pk), limit=REPORTS) as held:
        settings.SHOP_PROVIDER(settings.SHOP_PAYMENT_SECONDS)
        return JsonResponse({"report": pk, "slot": held.slot, "fence": held.fence})


def _charge(pk: int, seconds: float) -> HttpResponse:
    """Read, ask the slow payment provider, write.

    Without the lock, two requests at the same time would both read "open" and both charge.
    """
    with lock(resource("order:<int:pk>", pk=pk), reentrant=True) as held:  # the lock of the view
        fence = held.fence
    order = get_object_or_404(Order, pk=pk)
    if order.state == Order.State.PAID:
        return JsonResponse({"order": order.number, "detail": "already paid"}, status=409)
    settings.SHOP_PROVIDER(seconds)
    Payment.objects.create(order=order, amount=order.total)
    order.state = Order.State.PAID
    order.save(update_fields=["state"])
    return JsonResponse({"order": order.number, "paid": order.total, "fence": fence})
