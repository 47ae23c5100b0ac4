"""A new password of a user is compared with the one that its page was opened with."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path
from django.views.debug import ExceptionReporter

from redlock_django import EditLockMixin
from tests.edit_locks.conftest import opened
from tests.edit_locks.pages import OpenPage

pytestmark = pytest.mark.django_db
Base: Any = UserAdmin


@pytest.fixture
def clerk() -> User:
    return User.objects.create_user("clerk", password="of old")


@pytest.fixture(params=["warn", "refuse"])
def _users(request: pytest.FixtureRequest, urls: list[Any]) -> None:
    """Register users alone: the admin of groups is not needed."""
    site = admin.AdminSite()
    made = type("Users", (EditLockMixin, Base), {"edit_conflict": request.param})
    site.register(User, made)
    urls[:] = [path("admin/", site.urls)]


def page(client: Client, user: User, name: str = "password", form: str = "user_form") -> OpenPage:
    return opened(client, f"/admin/auth/user/{user.pk}/{name}/", form)


def entered(password: str) -> dict[str, str]:
    return {"password1": password, "password2": password, "usable_password": "true"}


@pytest.mark.usefixtures("_users")
def test_the_second_of_two_new_passwords_is_refused(anna: Client, bob: Client, clerk: User) -> None:
    hers, his = page(anna, clerk), page(bob, clerk)
    for shown in (hers, his):
        assert clerk.password not in shown.text
        assert "of old" not in shown.text
    User.objects.filter(pk=clerk.pk).update(first_name="Carl")  # a login changes a row, too
    assert his.send(entered("his 4 words long")).url.endswith("/change/")
    assert hers.send(entered("her 4 words long")).url == hers.path
    assert "has changed since the page was opened: clerk" in page(anna, clerk).text
    clerk.refresh_from_db()
    assert (clerk.check_password("his 4 words long"), clerk.first_name) == (True, "Carl")
    assert page(anna, clerk).send(entered("her 4 words long")).url.endswith("/change/")
    clerk.refresh_from_db()
    assert clerk.check_password("her 4 words long")


@pytest.mark.usefixtures("_users")
def test_a_form_with_an_error_can_be_sent_again(anna: Client, clerk: User) -> None:
    shown = page(anna, clerk)
    assert shown.send({**entered("her 4 words long"), "password2": "typo"}).status_code == 200
    assert shown.send(entered("her 4 words long")).status_code == 302


@pytest.mark.usefixtures("_users")
def test_the_row_is_locked_before_it_is_read(anna: Client, clerk: User) -> None:
    """Django saves the whole row: what was read before another's save would overwrite it."""
    shown = page(anna, clerk)
    with CaptureQueriesContext(connection) as found:
        shown.send(entered("her 4 words long"))
    queries = [one["sql"] for one in found if '"auth_user"' in one["sql"]]
    locked = next(
        n for n, sql in enumerate(queries) if sql.startswith('UPDATE "auth_user" SET "id"')
    )
    read = max(
        n
        for n, sql in enumerate(queries)
        if sql.startswith("SELECT") and f'"id" = {clerk.pk} ' in sql
    )
    assert locked < read


@pytest.mark.usefixtures("_users")
def test_both_versions_of_a_user_show_no_hash(anna: Client, clerk: User) -> None:
    shown = page(anna, clerk, "change")
    clerk.set_password("another")
    clerk.save()
    assert shown.send(first_name="Carl").status_code == 200
    assert "<td>••••••</td><td>••••••" in shown.text
    for part in clerk.password.split("$"):
        assert len(part) < 8 or part not in shown.text


@pytest.mark.usefixtures("_users")
def test_a_report_of_an_error_shows_no_new_password(
    anna: Client, clerk: User, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shown = page(anna, clerk)
    name = "redlock_django.edit_locks.model_admin.confirmations.locked_rows"
    monkeypatch.setattr(name, Mock(side_effect=ZeroDivisionError))
    anna.raise_request_exception = False
    assert shown.send(entered("her 4 words long")).status_code == 500
    record: Any = next(one for one in caplog.records if one.name == "django.request")
    kind, error, frames = record.exc_info
    while "model_admin/mixin" not in frames.tb_frame.f_code.co_filename:  # as of this test
        frames = frames.tb_next
    report = ExceptionReporter(
        record.request, kind, error.with_traceback(frames), frames
    ).get_traceback_html()
    assert "password1" in report
    assert "her 4 words long" not in report
