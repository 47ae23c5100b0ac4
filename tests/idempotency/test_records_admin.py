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
SEE, RESOLVE = "view_idempotencyrecord", "resolve_idempotencyrecord"


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


def answer(client: Client, row: IdempotencyRecord, action: str) -> str:
    """Resolve the request, and return the message of the admin."""
    data = {"action": action, "_selected_action": row.pk, "confirmed": "yes"}
    came: Any = client.post(LIST, data)
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
    reader = staff(SEE, RESOLVE)
    body = reader.get(LIST).content.decode()
    for text in (
        "POST /orders/",
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
def test_the_list_cannot_be_filtered_by_the_response(
    orders_site: Site, staff: Callable[..., Client], query: str
) -> None:
    orders_site.post()
    refused = staff(SEE, RESOLVE, raise_request_exception=False).get(f"{LIST}?{query}")
    assert (refused.status_code, b"POST /orders/" in refused.content) == (400, False)


def test_the_list_can_be_filtered_by_its_columns(
    orders_site: Site, staff: Callable[..., Client]
) -> None:
    orders_site.post()
    reader = staff(SEE)
    for query in ("status=201", "path__startswith=/orders/", "created_at__year__gt=2000"):
        assert "POST /orders/" in reader.get(f"{LIST}?{query}").content.decode(), query


def test_the_page_of_a_record_shows_no_response(
    orders_site: Site, staff: Callable[..., Client]
) -> None:
    orders_site.post()
    text = page(staff(SEE, RESOLVE), record())
    assert record().key_hash in text
    assert "/orders/" in text
    for secret in (KEY, "A-1", "application/json", 'name="state"'):
        assert secret not in text


def test_a_path_is_shown_in_printable_characters(staff: Callable[..., Client]) -> None:
    make("completed", path="/<b>\u202e/")
    body = staff(SEE).get(LIST).content.decode()
    assert "\u202e" not in body
    assert "POST /&lt;b&gt;" in body


def test_a_request_is_resolved_only_if_its_lock_is_not_held(
    orders_site: Site, staff: Callable[..., Client]
) -> None:
    client = staff(SEE, RESOLVE)
    row = make("running")
    with held_elsewhere(lock_name(row.key_hash)):
        assert "still running: POST /running/" in answer(client, row, "mark_done")
    row.refresh_from_db()
    assert row.state == "running"
    backend: Any = locks["default"].backend
    backend.down = [True] * len(backend.masters)
    assert "too few servers" in answer(client, row, "allow_repeat")
    backend.down = [False] * len(backend.masters)
    assert answer(client, row, "mark_done").startswith("Resolved")
    row.refresh_from_db()
    assert row.state == "tombstone"


@pytest.mark.parametrize(
    ("action", "then", "happened", "flag"),
    [("mark_done", 409, 1, CHANGE), ("allow_repeat", 201, 2, DELETION)],
)
def test_an_uncertain_request_is_resolved_after_a_question(
    orders_site: Site,
    staff: Callable[..., Client],
    caplog: pytest.LogCaptureFixture,
    action: str,
    then: int,
    happened: int,
    flag: int,
) -> None:
    row = interrupt(orders_site)
    assert orders_site.post().json()["code"] == "idempotency-outcome-uncertain"
    client = staff(SEE, RESOLVE)
    assert f'value="{action}"' in client.get(LIST).content.decode()
    question = client.post(
        LIST, {"action": action, "index": "0", "_selected_action": row.pk}
    ).content.decode()
    assert "cannot be undone" in question
    assert f"POST /orders/ ({row.key_hash[:8]})" in question
    assert record().state == "uncertain"
    with caplog.at_level(logging.WARNING, "redlock_django"):
        assert answer(client, row, action).startswith("Resolved: POST /orders/")
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
    answer(client, shown, "allow_repeat")
    again = interrupt(orders_site)
    assert again.key_hash == shown.key_hash
    assert "no longer exist" in answer(client, shown, "allow_repeat")
    assert record() == again
    done = make("completed")
    assert "no longer uncertain" in answer(client, done, "allow_repeat")
    assert IdempotencyRecord.objects.filter(pk=done.pk).exists()


def test_nothing_changes_without_a_permission_a_post_and_a_token(
    orders_site: Site, staff: Callable[..., Client]
) -> None:
    row = interrupt(orders_site)
    data = {"action": "allow_repeat", "_selected_action": str(row.pk), "confirmed": "yes"}
    allowed = staff(SEE, RESOLVE, enforce_csrf_checks=True)
    assert allowed.post(LIST, data).status_code == 403
    assert allowed.get(LIST, data).status_code == 400
    for other in (staff(SEE), staff(RESOLVE), Client()):
        other.post(LIST, data)
        assert "allow_repeat" not in other.get(LIST).content.decode()
    root = Client()
    root.force_login(User.objects.create_superuser("root"))
    for forbidden in (f"{LIST}add/", f"{LIST}{row.pk}/delete/"):
        assert root.get(forbidden).status_code == 403
        assert root.post(forbidden, {"post": "yes"}).status_code == 403
    assert root.post(f"{LIST}{row.pk}/change/", {"state": "completed"}).status_code == 403
    assert record().state == "uncertain"
    assert not LogEntry.objects.exists()


def test_several_requests_are_resolved_at_once(staff: Callable[..., Client]) -> None:
    rows = [make("uncertain", path=f"/{number}/") for number in range(3)]
    client = staff(SEE, RESOLVE)
    chosen = {"_selected_action": [row.pk for row in rows[:2]], "action": "mark_done"}
    assert client.post(LIST, {**chosen, "index": "0"}).content.decode().count("<bdi>POST") == 2
    client.post(LIST, {**chosen, "confirmed": "yes"})
    states = IdempotencyRecord.objects.order_by("pk").values_list("state", flat=True)
    assert list(states) == ["tombstone", "tombstone", "uncertain"]
    assert LogEntry.objects.count() == 2


def test_the_question_has_no_inline_script_or_style(staff: Callable[..., Client]) -> None:
    row, client = make("uncertain"), staff(SEE, RESOLVE)
    data = {"action": "mark_done", "index": "0", "_selected_action": row.pk}
    text = client.post(LIST, data).content.decode()
    ours = text[text.index("Record that these requests") :]
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:|<script", ours)
