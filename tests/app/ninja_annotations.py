"""Operations of django-ninja with annotations that are strings, as in many sites."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

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


api.post("/lock/sync/")(locked(pay))
api.post("/lock/async/")(locked(apay))
api.post("/lock/form/")(locked(pay_form))
api.post("/once/sync/")(once(pay))
api.post("/once/async/")(once(apay))
api.post("/once/form/")(once(pay_form))
api.post("/both/sync/")(once(locked(pay)))
api.post("/both/async/")(once(locked(apay)))
