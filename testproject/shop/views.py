"""The views of the shop. `pay` must not run twice for one order."""

from __future__ import annotations

import secrets
import time
from uuid import uuid4

from django.conf import settings
from django.db.models import Count
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_GET, require_POST

from redlock_django import idempotent, lock_resource
from testproject.shop.models import Order, Payment

_SHOWN = 5


def visitor(request: HttpRequest, **_: object) -> str:
    """Return an ID for a visitor without a login, to which an idempotency key belongs."""
    known: str = request.session.setdefault("visitor", str(uuid4()))
    return known


@require_GET
@ensure_csrf_cookie
def index(request: HttpRequest) -> HttpResponse:
    """Show the newest orders, each with buttons that pay it twice at once."""
    visitor(request)
    orders = Order.objects.annotate(paid_times=Count("payments")).order_by("-pk")[:_SHOWN]
    return render(request, "shop/index.html", {"orders": orders})


@require_POST
def new_order(request: HttpRequest) -> HttpResponse:
    """Create an order."""
    order = Order.objects.create(
        number=f"A-{secrets.token_hex(3).upper()}", total=500 + secrets.randbelow(9500)
    )
    if request.accepts("text/html"):
        return redirect("shop:index")
    return JsonResponse({"order": order.number, "pk": order.pk, "total": order.total}, status=201)


@require_GET
def order_facts(request: HttpRequest, pk: int) -> HttpResponse:
    """Return the state of an order and the number of its payments."""
    order = get_object_or_404(Order, pk=pk)
    return JsonResponse(
        {"order": order.number, "state": order.state, "payments": order.payments.count()}
    )


@require_POST
@idempotent(anonymous_scope=visitor)
@lock_resource("order:<int:pk>")
def pay(request: HttpRequest, pk: int) -> HttpResponse:
    """Charge the order once: read, ask the slow payment provider, write.

    Without the lock, two requests at the same time would both read "open" and both charge. A
    request that is repeated with its key gets the same response instead of an error.
    """
    order = get_object_or_404(Order, pk=pk)
    if order.state == Order.State.PAID:
        return JsonResponse({"order": order.number, "detail": "already paid"}, status=409)
    time.sleep(settings.SHOP_PAYMENT_SECONDS)  # the payment provider
    Payment.objects.create(order=order, amount=order.total)
    order.state = Order.State.PAID
    order.save(update_fields=["state"])
    return JsonResponse({"order": order.number, "paid": order.total})
