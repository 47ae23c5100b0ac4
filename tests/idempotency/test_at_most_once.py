"""However a view ends, its effects happen once: undone, or kept with an answer, or uncertain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse

from redlock_django import idempotent, lock
from redlock_django.exceptions import ResourceLocked
from tests.idempotency.conftest import InThread, Site, make_order, orders

pytestmark = pytest.mark.django_db(transaction=True)


def raises(error: Exception) -> Callable[[], HttpResponse]:
    def end() -> HttpResponse:
        raise error

    return end


def meets_a_busy_lock() -> HttpResponse:
    if connection.in_atomic_block:
        raise ResourceLocked("order:9")  # SQLite is refused locks inside of a transaction
    with lock("order:9"):
        return HttpResponse()


REFUSALS = {
    "Http404": (raises(Http404()), 404),
    "PermissionDenied": (raises(PermissionDenied()), 403),
    "SuspiciousOperation": (raises(SuspiciousOperation()), 400),
    "BadRequest": (raises(BadRequest()), 400),
}
RETURNED = {
    str(status): (lambda status=status: HttpResponse("no", status=status), status)
    for status in (400, 403, 408, 423, 429)
}
FAILURES = {
    "RuntimeError": (raises(RuntimeError()), 500),
    "500": (lambda: HttpResponse(status=500), 500),
    "503": (lambda: HttpResponse(status=503), 503),
    "busy lock": (meets_a_busy_lock, 423),
}
ENDS: dict[str, tuple[Any, int]] = {**REFUSALS, **RETURNED, **FAILURES}


def ending(end: Callable[[], HttpResponse], *, is_async: bool, **options: Any) -> Any:
    """Return an idempotent view that makes an order, and then ends like this."""

    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        make_order(request)
        return end()

    async def async_view(request: HttpRequest, **_: Any) -> HttpResponse:
        return await sync_to_async(view)(request)

    return idempotent(**options)(async_view if is_async else view)


def post_twice(site: Site) -> list[Any]:
    """Send the request twice while another client holds the resource of `meets_a_busy_lock`."""
    other = lock("order:9")
    InThread(lambda: other.acquire()).result  # noqa: B018 - waits
    try:
        return [site.post() for _ in range(2)]
    finally:
        other.release()


@pytest.mark.attack
@pytest.mark.parametrize("end", ENDS)
def test_without_a_transaction_the_effects_are_never_repeated(
    site: Site, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", False)
    work, status = ENDS[end]
    site.serve(ending(work, is_async=True))
    first, second = post_twice(site)
    assert first.status_code == status
    assert orders() == 1
    if end in FAILURES:
        assert second.json()["code"] == "idempotency-outcome-uncertain"
    else:
        assert (second.status_code, second.content) == (status, first.content)
        assert second["Idempotent-Replayed"] == "true"


@pytest.mark.parametrize("end", ENDS)
def test_in_a_transaction_only_an_undone_view_runs_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, sees_commits: None, end: str
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    work, status = ENDS[end]
    site.serve(ending(work, is_async=False))
    assert [answer.status_code for answer in post_twice(site)] == [status, status]
    assert orders() == (1 if end in RETURNED else 0)
