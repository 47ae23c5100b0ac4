"""Idempotency records in the admin: who sees what, and resolving an uncertain request."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import path

from redlock_django import idempotent
from redlock_django.idempotency.key import lock_name
from redlock_django.locking.services import locks
from redlock_django.models import IdempotencyRecord
from redlock_django.testing import held_elsewhere
from testproject.urls import urlpatterns as shop_and_admin
from tests.idempotency.conftest import KEY, Site, make_order, orders, record

pytestmark = pytest.mark.django_db(transaction=True)
LIST = "/admin/redlock_django/idempotencyrecord/"
SEE, BODY, RESOLVE = (
    "view_idempotencyrecord",
    "view_idempotency_body",
    "resolve_idempotencyrecord",
)


@pytest.fixture
def orders_site(site: Site) -> Site:
    """A site with idempotent orders and an admin."""
    site.put(path("orders/", idempotent(make_order)), *shop_and_admin)
    return site


@pytest.fixture
def staff(db: None) -> Callable[..., Client]:
    def logged_in(*codenames: str, **options: Any) -> Client:
        user = User.objects.create_user("-".join(["staff", *codenames]), is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        assert user.user_permissions.count() == len(codenames)
        client = Client(**options)
        client.force_login(user)
        return client

    return logged_in


def make(state: str, **fields: Any) -> IdempotencyRecord:
    number = IdempotencyRecord.objects.count()
    given = {"key_hash": f"{number:064x}", "method": "POST", "path": f"/{state}/", **fields}
    return IdempotencyRecord.objects.create(state=state, attempt="a" * 32, user="7", **given)


def page(client: Client, row: IdempotencyRecord) -> str:
    return client.get(f"{LIST}{row.pk}/change/").content.decode()


def answer(client: Client, row: IdempotencyRecord, verdict: str) -> str:
    """Resolve the request, and return the message of the admin."""
    data = {"verdict": verdict, "confirmed": "yes"}
    came: Any = client.post(f"{LIST}{row.pk}/resolve/", data)
    assert came.status_code == 302
    return [str(message) for message in get_messages(came.wsgi_request)][-1]


def interrupt(site: Site) -> IdempotencyRecord:
    """Create the record of a request whose outcome is not known."""
    site.post()
    IdempotencyRecord.objects.update(state="uncertain", status=None, expires_at=None)
    return record()


def test_the_list_shows_states_and_neither_keys_nor_bodies(
    orders_site: Site, staff: Callable[..., Client]
) -> None:
    assert orders_site.post().status_code == 201
    for state in ("running", "uncertain", "tombstone"):
        make(state)
    reader = staff(SEE, BODY, RESOLVE)
    body = reader.get(LIST).content.decode()
    for text in (
        "POST /orders/",
        " s ago",
        "completed",
        "running or interrupted",
        "uncertain",
        "tombstone",
    ):
        assert text in body, text
    for secret in (KEY, "A-1", record_of("/orders/").key_hash[:16]):
        assert secret not in body
    assert "/uncertain/" in reader.get(LIST + "?state__exact=uncertain").content.decode()
    for query in ("?state__exact=uncertain", "?q=/uncertain/", "?method=PATCH"):
        assert "POST /orders/" not in reader.get(LIST + query).content.decode()
    assert "0 results" in reader.get(f"{LIST}?q={record_of('/orders/').key_hash}").content.decode()


def record_of(path: str) -> IdempotencyRecord:
    return IdempotencyRecord.objects.get(path=path)


@pytest.mark.attack
@pytest.mark.parametrize(
    "query",
    [
        "body__startswith=%7B",
        "body__gte=%7B",
        "body=%7B",
        "body__isnull=0",
        "headers__icontains=json",
        "headers__0__0=Content-Type",
        "headers__contains=%5B%5D",
        "fingerprint__startswith=a",
        "attempt__startswith=a",
        "key_hash__startswith=a",
    ],
)
@pytest.mark.parametrize("permissions", [(SEE,), (SEE, BODY)])
def test_the_list_cannot_be_filtered_by_the_response(
    orders_site: Site, staff: Callable[..., Client], query: str, permissions: tuple[str, ...]
) -> None:
    orders_site.post()
    refused = staff(*permissions, raise_request_exception=False).get(f"{LIST}?{query}")
    assert (refused.status_code, b"POST /orders/" in refused.content) == (400, False)


def test_the_list_can_be_filtered_by_its_columns(
    orders_site: Site, staff: Callable[..., Client]
) -> None:
    orders_site.post()
    reader = staff(SEE)
    for query in ("status=201", "path__startswith=/orders/", "created_at__year__gt=2000"):
        assert "POST /orders/" in reader.get(f"{LIST}?{query}").content.decode(), query


def test_a_response_is_shown_to_users_with_its_permission_only(
    orders_site: Site, staff: Callable[..., Client]
) -> None:
    orders_site.post()
    plain = page(staff(SEE), record())
    assert "A-1" not in plain
    assert "have permission to view the response" in plain
    allowed = page(staff(SEE, BODY), record())
    assert "{&quot;order&quot;: &quot;A-1&quot;}" in allowed
    assert "application/json" in allowed
    assert KEY not in allowed


def test_a_body_is_shown_as_text_and_never_as_a_page(staff: Callable[..., Client]) -> None:
    client = staff(SEE, BODY)
    html = make("completed", status=200, body=b"<script>alert(1)</script>\x1b[2J")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\ufffd[2J" in page(client, html)
    assert "3 bytes of binary data" in page(client, make("completed", body=b"\xff\x00\x01"))
    zipped = make("completed", body=b"abcd", headers=[["Content-Encoding", "x"]])
    assert "4 bytes of binary data" in page(client, zipped)
    long = page(client, make("completed", body=b"e" * 30_000))
    assert "e" * 20_000 + "…" in long
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", long)


def test_the_lock_of_a_record_distinguishes_running_from_interrupted(
    orders_site: Site, staff: Callable[..., Client]
) -> None:
    client = staff(SEE, RESOLVE)
    row = make("running")
    with held_elsewhere(lock_name(row.key_hash)):
        running = page(client, row)
        assert "This request is being processed" in running
        assert "It took effect" not in running
        assert "is still running" in answer(client, row, "applied")
    row.refresh_from_db()
    assert row.state == "running"
    assert "its lock is no longer held" in page(client, row)
    backend: Any = locks["default"].backend
    backend.down = [True] * len(backend.masters)
    unknown = page(client, row)
    assert "running or interrupted" in unknown
    assert "It took effect" not in unknown
    assert "too few servers" in answer(client, row, "not-applied")
    backend.down = [False] * len(backend.masters)
    assert answer(client, row, "applied").startswith("Resolved")
    row.refresh_from_db()
    assert row.state == "tombstone"


@pytest.mark.parametrize(
    ("verdict", "then", "happened", "flag"),
    [("applied", 409, 1, CHANGE), ("not-applied", 201, 2, DELETION)],
)
def test_an_uncertain_request_is_resolved_after_a_question(
    orders_site: Site,
    staff: Callable[..., Client],
    caplog: pytest.LogCaptureFixture,
    verdict: str,
    then: int,
    happened: int,
    flag: int,
) -> None:
    row = interrupt(orders_site)
    assert orders_site.post().json()["code"] == "idempotency-outcome-uncertain"
    client = staff(SEE, RESOLVE)
    assert f'value="{verdict}"' in page(client, row)
    question = client.post(f"{LIST}{row.pk}/resolve/", {"verdict": verdict}).content.decode()
    assert "cannot be undone" in question
    assert record().state == "uncertain"
    with caplog.at_level(logging.WARNING, "redlock_django"):
        assert answer(client, row, verdict).startswith("Resolved: POST /orders/")
    entry = LogEntry.objects.get()
    assert (entry.action_flag, entry.user.get_username()) == (flag, f"staff-{SEE}-{RESOLVE}")
    [line] = [text for text in caplog.messages if "was resolved by" in text]
    assert f"staff-{SEE}-{RESOLVE}" in line
    assert KEY not in line
    assert orders_site.post().status_code == then
    assert orders() == happened


def test_the_record_that_was_shown_is_resolved(
    orders_site: Site, staff: Callable[..., Client]
) -> None:
    client = staff(SEE, RESOLVE)
    shown = interrupt(orders_site)
    answer(client, shown, "not-applied")
    again = interrupt(orders_site)
    assert again.key_hash == shown.key_hash
    assert "no longer exists" in answer(client, shown, "not-applied")
    assert record() == again
    done = make("completed")
    assert "no longer uncertain" in answer(client, done, "not-applied")
    assert IdempotencyRecord.objects.filter(pk=done.pk).exists()


def test_nothing_changes_without_a_permission_a_post_and_a_token(
    orders_site: Site, staff: Callable[..., Client]
) -> None:
    row = interrupt(orders_site)
    data = {"verdict": "not-applied", "confirmed": "yes"}
    url = f"{LIST}{row.pk}/resolve/"
    allowed = staff(SEE, RESOLVE, enforce_csrf_checks=True)
    assert allowed.post(url, data).status_code == 403
    assert allowed.get(url, data).status_code == 405
    for other in (staff(SEE), staff(RESOLVE), staff(BODY, SEE)):
        assert other.post(url, data).status_code == 403
    assert (
        "It took effect" not in page(Client(), row) + orders_site.client.get(url).content.decode()
    )
    root = Client()
    root.force_login(User.objects.create_superuser("root"))
    for forbidden in (f"{LIST}add/", f"{LIST}{row.pk}/delete/"):
        assert root.get(forbidden).status_code == 403
        assert root.post(forbidden, {"post": "yes"}).status_code == 403
    assert root.post(f"{LIST}{row.pk}/change/", {"state": "completed"}).status_code == 200
    assert record().state == "uncertain"
    assert not LogEntry.objects.exists()


def test_the_pages_have_no_inline_script_or_style(
    orders_site: Site, staff: Callable[..., Client]
) -> None:
    row = interrupt(orders_site)
    client = staff(SEE, RESOLVE, BODY)
    question = client.post(f"{LIST}{row.pk}/resolve/", {"verdict": "applied"}).content.decode()
    for text in (page(client, row), question):
        ours = text[text.index('<div class="redlock') :]
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:|<script", ours)
