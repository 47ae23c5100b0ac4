"""django-reversion: reverting a row to an old version is a save, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client

from redlock_django import EditLockMixin
from tests.edit_locks.conftest import opened
from tests.edit_locks.models import Article, Paragraph

if TYPE_CHECKING:
    from pytest_django import Settings

# Tables cannot be made inside a transaction of SQLite.
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def reverting(settings: Settings, register: Callable[..., None]) -> Iterator[None]:
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "reversion"]
    import reversion
    from reversion.admin import VersionAdmin
    from reversion.models import Revision, Version

    with connection.schema_editor() as editor:
        editor.create_model(Revision)
        editor.create_model(Version)
    paragraphs: Any = type("Paragraphs", (admin.TabularInline,), {"model": Paragraph, "extra": 0})
    register(type("ArticleAdmin", (EditLockMixin, VersionAdmin), {"inlines": [paragraphs]}))
    yield
    reversion.unregister(Article)
    reversion.unregister(Paragraph)
    with connection.schema_editor() as editor:
        editor.delete_model(Version)
        editor.delete_model(Revision)


@pytest.mark.usefixtures("reverting")
def test_a_revert_of_a_row_that_has_changed_is_refused(
    anna: Client, article: Article, change: str
) -> None:
    from reversion.models import Version

    article.paragraphs.create(text="1")
    assert opened(anna, change).send(title="First").status_code == 302
    assert opened(anna, change).send(title="Second").status_code == 302
    first = Version.objects.get_for_object(article).last()
    path = f"/admin/edited/article/{article.pk}/history/{first.pk}/"
    reverts = opened(anna, path)
    assert reverts.fields["title"] == ["First"]
    Article.objects.update(title="Bob's")
    assert reverts.send().status_code == 302
    again = opened(anna, path)
    assert "has changed since the page was opened: Bob&#x27;s" in again.text
    article.refresh_from_db()
    assert article.title == "Bob's"
    article.paragraphs.update(text="Bob's")
    assert again.send().status_code == 302
    article.refresh_from_db()
    assert (article.title, article.paragraphs.get().text) == ("Bob's", "Bob's")
    assert opened(anna, path).send().status_code == 302
    article.refresh_from_db()
    assert (article.title, article.paragraphs.get().text) == ("First", "1")
