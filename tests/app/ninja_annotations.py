"""Operations of django-ninja with annotations that are strings, as in many sites."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import ninja
from django.http import JsonResponse

from redlock_django import idempotent, lock_resource, resource

if TYPE_CHECKING:
    from django.http import HttpRequest


class Payment(ninja.Schema):
    """The body of the requests."""

    order: uuid.UUID
    amount: int


def name(request: HttpRequest, data: Payment) -> str:
    """Return the lock of a payment."""
    return resource("order:<uuid:order>", order=data.order)


api = ninja.NinjaAPI(urls_namespace="annotations")
locked = lock_resource(name)
once = idempotent(anonymous_scope=lambda request, **_: "all")


def pay(request: HttpRequest, data: Payment) -> JsonResponse:
    """Return what was paid."""
    return JsonResponse({"paid": data.amount})


async def apay(request: HttpRequest, data: Payment) -> JsonResponse:
    """Return what was paid."""
    return JsonResponse({"paid": data.amount})


def pay_form(request: HttpRequest, data: ninja.Form[Payment]) -> JsonResponse:
    """Return what was paid."""
    return JsonResponse({"paid": data.amount})


DECORATED: dict[str, Any] = {
    "lock/sync": locked(pay),
    "lock/async": locked(apay),
    "lock/form": locked(pay_form),
    "once/sync": once(pay),
    "once/async": once(apay),
    "once/form": once(pay_form),
    "both/sync": once(locked(pay)),
    "both/async": once(locked(apay)),
}
for place, view in DECORATED.items():
    api.post(f"/{place}/")(view)
