"""A page says who else has its row open: in the memory of one process, without a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.views.debug import ExceptionReporter

from redlock_django import EditLockMixin, locks
from redlock_django.edit_locks.presence import Presence
from redlock_django.operate.inspection import held_locks
from tests.edit_locks.conftest import editor, opened, report, said
from tests.edit_locks.models import Article, Country, LongArticle, Territory, Versioned
from tests.edit_locks.pages import OpenPage

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.django_db
Base: Any = admin.ModelAdmin


@pytest.fixture
def warns(register: Callable[..., None]) -> None:
    register(type("ArticleAdmin", (EditLockMixin, Base), {}))


@pytest.mark.usefixtures("warns")
def test_the_second_editor_is_told_who_has_it_open_and_since_when(
    anna: Client, bob: Client, change: str
) -> None:
    hers = opened(anna, change)
    assert said(hers) == ""
    his = opened(bob, change)
    assert re.fullmatch(r"Anna has had this open since \d\d:\d\d", said(his))
    assert his.fields["title"] == ["Old"], "he may edit it anyway"
    [held] = held_locks().locks
    assert held.resource.startswith("edit:edited.article:")
    assert held.holder["editor"] == "Anna"


@pytest.mark.usefixtures("warns", "database_access")
def test_pages_are_known_in_a_database(
    anna: Client, bob: Client, change: str, settings: Settings
) -> None:
    """Also inside the transaction of a request: a lock is on a connection of its own."""
    store = {"BACKEND": "redlock_django.backends.database.DatabaseBackend"}
    settings.REDLOCK = {"default": store}
    hers, his = opened(anna, change), opened(bob, change)
    assert said(his).startswith("Anna has had this open since")
    assert report(hers, "renew") == {"editor": "", "can_take": False}
    assert report(his, "take") == {"editor": "", "can_take": False}
    assert report(hers, "renew")["editor"].startswith("Bob has had this open since")
    assert report(his, "leave") == 204
    assert said(opened(anna, change)) == ""


@pytest.mark.usefixtures("warns")
def test_edit_anyway_takes_over_and_the_other_is_told(
    anna: Client, bob: Client, change: str
) -> None:
    hers, his = opened(anna, change), opened(bob, change)
    assert report(hers, "renew") == {"editor": "", "can_take": False}
    assert report(his, "renew")["can_take"] is True
    assert report(his, "take") == {"editor": "", "can_take": False}
    assert report(hers, "renew")["editor"].startswith("Bob has had this open since")
    assert report(his, "renew")["editor"] == ""


@pytest.mark.usefixtures("warns")
def test_a_store_of_a_site_may_be_unable_to_hand_locks_on(
    anna: Client, bob: Client, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks["default"].backend, "hands_on", False)
    hers, his = opened(anna, change), opened(bob, change)
    assert hers.ticket == ""
    assert report(hers, "renew") == {"editor": "", "can_take": False}
    assert report(his, "take") == {"editor": "", "can_take": False}
    assert report(hers, "renew")["editor"].startswith("Bob")
    assert report(his, "leave") == 204
    assert held_locks().locks == ()


@pytest.mark.usefixtures("warns")
def test_a_page_that_is_left_is_free(anna: Client, bob: Client, change: str) -> None:
    hers = opened(anna, change)
    his = opened(bob, change)
    assert report(his, "leave") == 204, "he leaves a page that is not the holder's"
    assert said(opened(bob, change)).startswith("Anna")
    assert report(hers, "leave") == 204
    assert said(opened(bob, change)) == ""


@pytest.mark.usefixtures("warns")
def test_a_page_that_is_not_renewed_ends_with_its_ttl(
    anna: Client, bob: Client, change: str
) -> None:
    hers = opened(anna, change)
    backend: Any = locks["default"].backend
    backend.advance(61)
    his = opened(bob, change)
    assert said(his) == ""
    assert report(hers, "renew")["editor"].startswith("Bob")


@pytest.mark.usefixtures("warns")
def test_another_tab_of_the_same_user(anna: Client, change: str) -> None:
    first, second = opened(anna, change), opened(anna, change)
    assert said(second) == "", "it may be the page after a save"
    assert report(first, "renew")["editor"].startswith("You have this open in another tab")
    assert report(second, "renew")["editor"] == ""


@pytest.mark.usefixtures("warns")
def test_a_row_that_was_deleted_is_not_a_withdrawn_right(
    anna: Client, article: Article, change: str
) -> None:
    hers = opened(anna, change)
    article.delete()
    assert report(hers, "renew") == 404
    hers.client = Client()
    hers.client.force_login(User.objects.create_user("clerk", is_staff=True))
    assert report(hers, "renew") == 403


def test_a_pop_up_may_name_a_row_by_another_field(
    register: Callable[..., None], anna: Client, article: Article
) -> None:
    other = Article.objects.create(title=str(article.pk))
    register(type("ArticleAdmin", (EditLockMixin, Base), {}))
    path = f"/admin/edited/article/{other.title}/change/?_to_field=title"
    assert anna.post(path, {"_edit_lock": "renew"}).status_code == 400, "nothing refers to it"
    assert anna.post(path.replace("change", "delete"), {"post": "yes"}).status_code == 400
    allow = {"to_field_allowed": lambda self, request, field: True}
    register(type("ArticleAdmin", (EditLockMixin, Base), allow))
    hers = opened(anna, path)
    assert report(hers, "renew") == {"editor": "", "can_take": False}
    assert [held.resource for held in held_locks().locks] == [f"edit:edited.article:{other.pk}"]
    assert report(hers, "leave") == 204
    assert held_locks().locks == ()


@pytest.mark.usefixtures("warns")
def test_a_page_to_read(anna: Client, bob: Client, change: str) -> None:
    opened(anna, change)
    his = OpenPage(bob, change + "?_edit=read")
    assert said(his).startswith("Anna")
    assert "You can read it, not change it." in his.text
    assert 'name="_save"' not in his.text


@pytest.mark.usefixtures("warns")
def test_the_links_of_a_page_keep_its_parameters(anna: Client, bob: Client, change: str) -> None:
    opened(anna, change)
    his = opened(bob, f"{change}?_popup=1")
    assert f'href="{change}?_popup=1&amp;_edit=read"' in his.text
    reading = OpenPage(bob, f"{change}?_edit=read&_popup=1")
    assert f'href="{change}?_popup=1"' in reading.text


@pytest.mark.usefixtures("warns")
def test_presence_is_a_hint(anna: Client, bob: Client, change: str, settings: Settings) -> None:
    """The versions alone decide what is saved, whatever became of the locks."""
    opened(anna, change)
    his = opened(bob, change)
    assert his.send(title="Bob's").status_code == 302
    settings.REDLOCK = {"default": {"MASTERS": ["redis://127.0.0.1:1/0"], "MASTER_TIMEOUT": 0.1}}
    again = opened(bob, change)
    assert said(again) == ""
    assert again.send(title="Bob's second").status_code == 302
    assert Article.objects.get().title == "Bob's second"


@pytest.mark.usefixtures("warns")
def test_only_an_editor_reports(anna: Client, change: str) -> None:
    hers = opened(anna, change)
    client = Client()
    client.force_login(User.objects.create_user("clerk", is_staff=True))
    hers.client = client
    assert report(hers, "take") == 403
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(username="anna"))
    hers.client = strict
    assert report(hers, "take") == 403


def test_an_unlocked_page_costs_one_lock(
    register: Callable[..., None], anna: Client, article: Article, change: str
) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as found:
            anna.get(change)
        return len(found)

    register(type("ArticleAdmin", (Base,), {}))
    anna.get(change)
    plain = queries()
    register(type("ArticleAdmin", (EditLockMixin, Base), {}))
    acquired: list[Any] = []
    backend: Any = locks["default"].backend
    acquire = backend.acquire

    def counted(*args: Any) -> Any:
        acquired.append(args)
        return acquire(*args)

    backend.acquire = counted
    assert queries() == plain
    assert len(acquired) == 1


@pytest.mark.usefixtures("warns")
def test_a_head_request_opens_no_page(anna: Client, change: str) -> None:
    assert anna.head(change).status_code == 200
    assert held_locks().locks == ()


@pytest.mark.usefixtures("warns")
def test_a_name_of_a_user_is_text(bob: Client, change: str) -> None:
    name = "<img src=x onerror=alert(1)>"
    eve = Client()
    eve.force_login(User.objects.create_superuser("eve", first_name=name))
    hers = opened(eve, change)
    his = opened(bob, change)
    assert "<img" not in his.text
    assert said(his).startswith("&lt;img src=x")
    assert report(hers, "renew")["editor"] == ""
    assert report(his, "renew")["editor"].startswith("<img"), "JSON, shown as text by the script"


@pytest.mark.usefixtures("warns")
def test_a_ticket_counts_for_its_own_row_only(anna: Client, bob: Client, article: Article) -> None:
    other = Article.objects.create(title="Other")
    hers, his = (
        opened(client, f"/admin/edited/article/{row.pk}/change/")
        for client, row in ((anna, article), (bob, other))
    )
    hers.ticket = his.ticket
    assert report(hers, "renew") == {"editor": "", "can_take": False}, "it is her page by its id"
    assert report(his, "renew") == {"editor": "", "can_take": False}
    assert [held.holder["editor"] for held in held_locks().locks] == ["Anna", "Bob"]


@pytest.mark.usefixtures("warns")
def test_a_report_of_an_error_shows_no_ticket(
    anna: Client, change: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hers = opened(anna, change)
    backend: Any = locks["default"].backend
    monkeypatch.setattr(backend, "resume", lambda *args: 1 / 0)
    anna.raise_request_exception = False
    assert report(hers, "renew") == 500
    record: Any = next(one for one in caplog.records if one.name == "django.request")
    shown = ExceptionReporter(record.request, *record.exc_info).get_traceback_html()
    assert "_edit_ticket" in shown
    assert hers.ticket not in shown


def test_a_model_and_its_parent_have_one_lock(
    register: Callable[..., None], anna: Client, bob: Client
) -> None:
    row = LongArticle.objects.create(title="Long")
    admin_class = type("ArticleAdmin", (EditLockMixin, Base), {})
    register(admin_class, LongArticle)
    opened(anna, f"/admin/edited/longarticle/{row.pk}/change/", "longarticle_form")
    register(admin_class, Article)
    his = opened(bob, f"/admin/edited/article/{row.pk}/change/")
    assert said(his).startswith("Anna has had this open")


def test_a_model_with_several_parents_has_the_locks_of_all(
    register: Callable[..., None], anna: Client, bob: Client
) -> None:
    row = Territory.objects.create(title="T", code="at", name="Austria")
    admin_class = type("RowAdmin", (EditLockMixin, Base), {})

    def page(client: Client, model: type[Any], pk: Any) -> OpenPage:
        register(admin_class, model)
        name = model._meta.model_name
        return opened(client, f"/admin/edited/{name}/{pk}/change/", f"{name}_form")

    hers = page(anna, Territory, row.pk)
    assert report(hers, "renew") == {"editor": "", "can_take": False}
    for model, pk in ((Versioned, row.pk), (Country, "at")):
        assert said(page(bob, model, pk)).startswith("Anna has had this open")
    taken = page(bob, Country, "at")
    assert report(taken, "take") == {"editor": "", "can_take": False}
    register(admin_class, Territory)
    assert report(hers, "renew")["editor"].startswith("Bob has had this open")
    assert [held.holder["editor"] for held in held_locks().locks] == ["Bob"], "hers ended as one"
    register(admin_class, Country)
    assert report(taken, "leave") == 204
    register(admin_class, Territory)
    assert report(hers, "renew") == {"editor": "", "can_take": False}
    assert report(hers, "leave") == 204
    assert held_locks().locks == ()


@pytest.mark.usefixtures("urls")
def test_users_with_long_primary_keys_are_not_taken_for_each_other() -> None:
    """A holder has the first 200 characters of a value."""

    def page(pk: str) -> Presence:
        user: Any = SimpleNamespace(pk=pk, get_full_name=lambda: f"{len(pk)} characters")
        return Presence(SimpleNamespace(user=user), Article(pk=7), "default")

    long = "x" * 200
    assert page(long).open() is None
    for other in (f"{long}y", str(held_locks().locks[0].holder["user"])):
        assert str(page(other).open(take_own=True)).startswith("200 characters has had this")
    assert page(long).open(take_own=True) is None, "a page of the same user"


def test_a_row_that_was_only_looked_at_is_not_locked(
    warns: None, tables: None, anna: Client, article: Article, change: str
) -> None:
    viewer = Client()
    user = User.objects.create_user("viewer", is_staff=True)
    viewer.force_login(user)
    assert viewer.get(change).status_code == 403
    may_view, _ = Permission.objects.get_or_create(
        codename="view_article",
        content_type=ContentType.objects.get_for_model(Article),
        defaults={"name": "Can view article"},
    )
    user.user_permissions.add(may_view)
    hers = opened(anna, change)
    for path in (change, f"{change}?_edit=read"):
        seen = viewer.get(path)
        assert seen.status_code == 200
        assert "Anna" not in seen.content.decode(), "only editors learn who edits"
    assert viewer.post(change, {"_edit_lock": "take"}).status_code == 403
    assert report(hers, "leave") == 204
    assert editor("carl").get("/admin/edited/article/").status_code == 200
    assert held_locks().locks == ()
