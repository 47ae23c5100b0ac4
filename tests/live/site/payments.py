"""The same payment in every kind of view; the header `X-Do` names what else it does."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth import login
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.middleware.csrf import get_token
from django.views.decorators.csrf import csrf_exempt

from redlock_django import idempotent, lock_resource
from tests.live.site.dying import die, die_before_commit
from tests.live.site.models import Payment

GATES = Path(os.environ["SITE_GATES"])
PATIENCE = 60  # seconds that a view waits for its gate


def charge(request: Any, order: int) -> HttpResponse:
    """Create a payment; a second call creates a second row."""
    doing = request.headers.get("X-Do", "")
    wrong_user = -1 if doing == "fail at commit" else None
    payment = Payment.objects.create(order=order, user_id=wrong_user or request.user.pk)
    die("in the view")
    die_before_commit()
    transaction.on_commit(lambda: die("after the commit"))
    if doing == "wait":
        entered, opened = gate(order)
        entered.touch()
        deadline = time.monotonic() + PATIENCE
        while not opened.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
    return paid(payment, doing)


async def acharge(request: HttpRequest, order: int) -> HttpResponse:
    """Create a payment as `charge` does."""
    doing = request.headers.get("X-Do", "")
    payment = await Payment.objects.acreate(order=order, user_id=(await request.auser()).pk)
    die("in the view")
    if doing == "wait":
        entered, opened = gate(order)
        entered.touch()
        deadline = time.monotonic() + PATIENCE
        while not opened.exists() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return paid(payment, doing)


def gate(order: int) -> tuple[Path, Path]:
    """Return the file that shows that a view waits, and the file that makes it continue."""
    return GATES / f"{order}.entered", GATES / f"{order}.open"


def paid(payment: Payment, doing: str) -> HttpResponse:
    """Answer that it is paid, or do what `X-Do` names."""
    if doing == "raise":
        raise RuntimeError("asked for")
    response = JsonResponse({"payment": payment.pk}, status=int(doing) if doing.isdigit() else 201)
    response["Location"] = f"/payments/{payment.pk}/"
    response.set_cookie("seen", str(payment.pk))
    return response


@idempotent
async def async_function(request: HttpRequest, order: int) -> HttpResponse:
    """An async view, whose record is written before and after it."""
    return await acharge(request, order)


@idempotent(using="short")
async def async_short(request: HttpRequest, order: int) -> HttpResponse:
    """The same with a short lease."""
    return await acharge(request, order)


@idempotent(using="short")
async def async_complete(request: HttpRequest, order: int) -> HttpResponse:
    """An async view with a transaction of its own that contains its record."""
    user = await request.auser()

    def work() -> HttpResponse:
        with transaction.atomic():
            response = paid(Payment.objects.create(order=order, user_id=user.pk), "")
            die("in the view")
            request.idempotency.complete(response)  # type: ignore[attr-defined]
            die("before the commit")
        die("after the commit")
        return response

    return await sync_to_async(work)()


def body(request: HttpRequest, order: int) -> HttpResponse:
    """Answer with the size of what has arrived."""
    Payment.objects.create(order=order)
    return JsonResponse({"bytes": len(request.body)}, status=201)


locked = lock_resource("order:<int:order>")

KINDS: dict[str, Any] = {
    "function": idempotent(charge),
    "wait": idempotent(wait=60)(charge),
    "short": idempotent(using="short")(charge),
    "forgotten": idempotent(using="forgotten")(charge),
    "body": idempotent(body),
    "locked": idempotent(locked(charge)),
    "only-locked": locked(charge),
    "async": async_function,
    "async-short": async_short,
    "async-complete": async_complete,
}
"""Every view by the first part of its path."""


# Users.


@csrf_exempt
def log_in(request: HttpRequest, name: str) -> HttpResponse:
    """Log in as the named user."""
    user, _ = User.objects.get_or_create(username=name)
    login(request, user)
    return JsonResponse({"csrf": get_token(request)})
