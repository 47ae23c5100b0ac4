"""Fixtures: tables, an admin site with edit locks, and two editors."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext, modify_settings
from django.urls import clear_url_caches, path

from tests.edit_locks.models import MODELS, Article
from tests.edit_locks.pages import OpenPage

if TYPE_CHECKING:
    from pytest_django import Settings

MEMORY = "redlock_django.backends.memory.MemoryBackend"


@pytest.fixture(scope="module", autouse=True)
def _app() -> Iterator[None]:
    """Install the app of these tests."""
    with modify_settings(INSTALLED_APPS={"append": "tests.edit_locks"}):
        yield


@pytest.fixture(scope="module")
def tables(_app: None, django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Create the tables of the app of these tests."""
    with django_db_blocker.unblock(), connection.schema_editor() as editor:
        for model in MODELS:
            editor.create_model(model)
            ContentType.objects.get_for_model(model)
    yield
    with django_db_blocker.unblock(), connection.schema_editor() as editor:
        for model in reversed(MODELS):
            editor.delete_model(model)
        ContentType.objects.filter(app_label="edited").delete()
        ContentType.objects.clear_cache()


@pytest.fixture
def urls(settings: Settings) -> Iterator[list[Any]]:
    """Return the URL patterns of the site, to which a test adds its own."""
    settings.REDLOCK = {"default": {"BACKEND": MEMORY}}
    made = ModuleType("urls_of_edit_locks")
    sys.modules[made.__name__] = made
    patterns: list[Any] = []
    made.urlpatterns = patterns  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = made.__name__
    clear_url_caches()
    yield patterns
    del sys.modules[made.__name__]
    clear_url_caches()


@pytest.fixture
def register(tables: None, urls: list[Any]) -> Callable[..., None]:
    """Return a function that makes a ModelAdmin the only one of the admin at /admin/."""

    def put(admin_class: type[Any], model: type[Any] = Article) -> None:
        site = admin.AdminSite()
        site.register(model, admin_class)
        assert site.check(None) == []
        urls[:] = [path("admin/", site.urls)]
        clear_url_caches()

    return put


class Router:
    """Leads to the rows of these tests in a second database."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "edited" if model._meta.app_label == "edited" else None

    db_for_write = db_for_read

    def allow_relation(self, *rows: Any, **hints: Any) -> bool:
        return True


def editor(name: str) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser(name, first_name=name.title()))
    return client


@pytest.fixture
def anna(db: None) -> Client:
    return editor("anna")


@pytest.fixture
def bob(db: None) -> Client:
    return editor("bob")


@pytest.fixture
def article(tables: None, db: None) -> Article:
    row = Article(title="Old", body="Text", data=b"\x00\xff", extra={"a": [1]})
    row.save()
    return row


@pytest.fixture
def change(article: Article) -> str:
    """The path of the change form of the article."""
    return f"/admin/edited/article/{article.pk}/change/"


def opened(client: Client, path: str, form: str = "article_form") -> OpenPage:
    return OpenPage(client, path, form)


def reads_of(model: type[Any], work: Callable[[], Any]) -> int:
    """Return how many queries of `work` read rows of a model."""
    with CaptureQueriesContext(connection) as queries:
        work()
    table = f'FROM "{model._meta.db_table}" WHERE'
    return sum(table in one["sql"] for one in queries.captured_queries)


def report(page: OpenPage, action: str) -> Any:
    """Report as the script of a page does; return its answer without the ticket that it keeps."""
    sent = {"_edit_lock": action, "_edit_page": page.page_id, "_edit_ticket": page.ticket}
    answer = page.client.post(page.path, sent)
    if answer.status_code != 200:
        return answer.status_code
    told = answer.json()
    page.ticket = told.pop("ticket")
    return told


def said(page: OpenPage) -> str:
    """Return what a page says about other editors."""
    [text] = re.findall(r'<p role="status"[^>]*>(.*?)</p>', page.text)
    return str(text)
