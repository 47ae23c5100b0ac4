"""Two users edit one object in the admin: no save overwrites what another has saved meanwhile."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextvars import Context
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django import forms
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.signing import Signer
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext, modify_settings
from django.urls import path

from redlock_django import InvalidRedlock, LockLost, lock
from redlock_django.backends.memory import MemoryBackend
from redlock_django.contrib import edit_locks
from redlock_django.contrib.edit_locks import TTL, EditLockMixin
from redlock_django.operate.forced_release import force_release
from redlock_django.operate.inspection import held_locks
from redlock_django.testing import lose_lock
from tests.contrib.edited.models import (
    MODELS,
    Article,
    Link,
    LongArticle,
    Named,
    Numbered,
    Paragraph,
    ProxyArticle,
    Tag,
)
from tests.contrib.edited.pages import MOMENT, OpenPage
from tests.ports import free_port

if TYPE_CHECKING:
    from pytest_django import Settings

    ModelAdmin = admin.ModelAdmin[Any]
    TabularInline = admin.TabularInline[Any, Any]
else:
    ModelAdmin, TabularInline = admin.ModelAdmin, admin.TabularInline

OTHER = "Another user has had this open"
REFUSED = "Not saved: it was changed after you opened this page."


class ParagraphInline(TabularInline):
    model = Paragraph
    extra = 1


class ArticleAdmin(EditLockMixin, ModelAdmin):
    inlines = (ParagraphInline,)
    save_as = True


def model_admin(**attributes: Any) -> type[Any]:
    """Return a ModelAdmin with the mixin and these attributes."""
    return type("OwnAdmin", (EditLockMixin, ModelAdmin), attributes)


@pytest.fixture(scope="module", autouse=True)
def _tables(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with (
        modify_settings(INSTALLED_APPS={"append": "tests.contrib.edited"}),
        django_db_blocker.unblock(),
    ):
        with connection.schema_editor() as editor:
            for model in MODELS:
                editor.create_model(model)
        for model in [*MODELS, ProxyArticle]:
            ContentType.objects.get_for_model(model, for_concrete_model=False)
        yield
        with connection.schema_editor() as editor:
            for model in reversed(MODELS):
                editor.delete_model(model)
        ContentType.objects.filter(app_label="edited").delete()
        ContentType.objects.clear_cache()


class Site:
    """An admin at /admin/, with an article that Anna and Bob edit."""

    def __init__(self, urls: Callable[..., None]) -> None:
        self._urls, self._admin = urls, admin.AdminSite()
        self.anna, self.bob = user("anna"), user("bob")
        self.article: Article = Article.objects.create(title="Old")
        self.register(ArticleAdmin)

    def register(self, admin_class: type[Any], model: type[Any] = Article) -> None:
        """Serve a model by this ModelAdmin."""
        if self._admin.is_registered(model):
            self._admin.unregister(model)
        self._admin.register(model, admin_class)
        assert self._admin.check(None) == []
        self._urls(path("admin/", self._admin.urls))

    def change(self, row: Any = None, query: str = "") -> str:
        """Return the URL of the page that changes a row, by default the article."""
        row = row or self.article
        return f"/admin/edited/{row._meta.model_name}/{quote(row.pk)}/change/{query}"

    def hers(self, row: Any = None, query: str = "") -> OpenPage:
        """Return a page that Anna opens."""
        return OpenPage(self.anna, self.change(row, query))

    def his(self) -> OpenPage:
        """Return a page of the article that Bob opens."""
        return OpenPage(self.bob, self.change())

    def bob_saves(self, title: str = "Bob's") -> None:
        """Open the article and save it as Bob."""
        assert self.his().send(title=title).status_code == 302


def user(name: str) -> Client:
    client = Client(enforce_csrf_checks=False)
    client.force_login(User.objects.create_superuser(name, first_name=name.title()))
    return client


@pytest.fixture
def site(db: None, memory: None, urls: Callable[..., None]) -> Site:
    return Site(urls)


@pytest.fixture
def hers(site: Site) -> OpenPage:
    """The page that Anna has open."""
    return site.hers()


@pytest.fixture
def his(site: Site, hers: OpenPage) -> OpenPage:
    """The page that Bob opens after her."""
    return site.his()


def titles() -> list[str]:
    return [*Article.objects.order_by("pk").values_list("title", flat=True)]


def is_refused(hers: OpenPage, *values: Any, **more: Any) -> bool:
    """Send a page, and return whether it is refused because of another save."""
    return bool(hers.send(*values, **more).status_code == 200 and hers.errors[0] == REFUSED)


# Saves.


def test_a_save_over_that_of_another_user_is_refused_once(hers: OpenPage, his: OpenPage) -> None:
    assert his.send(title="Bob's").status_code == 302
    assert hers.send(title="Anna's").status_code == 200
    assert titles() == ["Bob's"]
    first, told, *_ = hers.errors
    assert first == REFUSED
    assert re.fullmatch(rf"Bob, {MOMENT}: Changed “Bob&#x27;s” — Changed Title\.", told)
    assert hers.fields["title"] == ["Anna's"]
    assert hers.send().status_code == 302
    assert titles() == ["Anna's"]
    assert LogEntry.objects.count() == 2


def test_each_later_change_is_told_before_it_is_replaced(site: Site, hers: OpenPage) -> None:
    for title in ("Bob's", "Bob's second"):
        site.bob_saves(title)
    hers.send(title="Anna's")
    assert [error.count("Bob, ") for error in hers.errors] == [0, 1, 1, 0, 0]
    site.bob_saves("Bob's third")
    assert hers.send().status_code == 200
    assert [error.count("Bob, ") for error in hers.errors] == [0, 1, 0, 0]
    assert titles() == ["Bob's third"]
    assert hers.send().status_code == 302


def test_a_second_click_and_another_tab_of_the_same_user_are_saved(site: Site) -> None:
    hers, tab = (site.hers() for _ in range(2))
    assert [hers.send(title="Anna's").status_code for _ in range(2)] == [302, 302]
    assert tab.send(title="Anna's second").status_code == 302


def test_a_page_that_was_left_is_refused_when_it_is_shown_again(site: Site, hers: OpenPage) -> None:
    """The browser keeps the page as it was: so does its URL for saves."""
    assert hers.send(title="Anna's").status_code == 302
    site.bob_saves()
    assert hers.send(title="Anna's").status_code == 200
    assert titles() == ["Bob's"]


def test_an_invalid_form_keeps_what_its_page_has_seen(site: Site, hers: OpenPage) -> None:
    assert hers.send(title="").status_code == 200
    assert hers.errors == []
    site.bob_saves()
    assert is_refused(hers, title="")
    assert hers.send(title="Anna's").status_code == 302


@pytest.mark.attack
def test_a_page_that_does_not_say_what_it_has_seen_has_seen_nothing(site: Site) -> None:
    site.bob_saves()
    for seen in ("", "?_edit_seen=", "?_edit_seen=x", "?_edit_seen=-1", f"?_edit_seen={'9' * 20}"):
        hers = site.hers()
        hers.action = seen
        assert is_refused(hers, title="Anna's")


def test_the_field_of_the_script_is_used_where_a_theme_replaces_the_url(site: Site) -> None:
    site.bob_saves()
    hers = site.hers()
    hers.action = "?_edit_seen=0"  # of an earlier page, kept by the address of the window
    assert hers.send(title="Anna's", _edit_seen=hers.script["seen"]).status_code == 302


def test_what_the_url_of_a_page_has_is_kept(site: Site) -> None:
    query = "?_changelist_filters=title%3DOld&_popup=1&_to_field=id&own=1"
    hers = site.hers(query=query)
    site.bob_saves()
    for _ in range(2):
        about = parse_qs(urlsplit(hers.action).query)
        assert about.pop("_edit_seen")
        expected = {"_popup": ["1"], "_to_field": ["id"], "own": ["1"]}
        assert about == {"_changelist_filters": ["title=Old"], **expected}
        assert (hers.fields["_popup"], hers.fields["_to_field"]) == (["1"], ["id"])
        answer = hers.send(title="Anna's")
    assert answer.status_code == 200
    assert "popup_response" in hers.text
    assert titles() == ["Anna's"]


def test_a_popup_that_names_its_object_by_another_field(site: Site) -> None:
    Article.objects.update(slug="old")
    site.register(type("LinkAdmin", (ModelAdmin,), {}), Link)  # which allows it
    hers = OpenPage(site.anna, "/admin/edited/article/old/change/?_popup=1&_to_field=slug")
    site.bob_saves()
    assert is_refused(hers, title="Anna's")
    hers.send()
    assert titles() == ["Anna's"]
    assert site.anna.get("/admin/edited/article/old/change/?_to_field=title").status_code == 400


@pytest.mark.parametrize("button", ["_continue", "_addanother", "_save"])
def test_the_buttons_of_a_page(site: Site, button: str) -> None:
    hers = site.hers(query="?_changelist_filters=title%3DOld")
    site.bob_saves()
    assert hers.send({"_save": None, button: "1"}, title="Anna's").status_code == 200
    answer = hers.send({"_save": None, button: "1"})
    assert answer.status_code == 302
    assert site.anna.get(answer.url).status_code == 200
    if button == "_continue":  # the next page has seen the save, whatever its URL has
        again = OpenPage(site.anna, answer.url)
        site.bob_saves("Bob's second")
        assert is_refused(again, title="Anna's")
    elif button == "_save":
        assert parse_qs(urlsplit(answer.url).query) == {"title": ["Old"]}


def test_save_as_new_overwrites_nothing(site: Site, hers: OpenPage) -> None:
    site.bob_saves()
    assert hers.send(title="", _save=None, _saveasnew="1").status_code == 200
    assert hers.errors == []
    assert hers.send(title="Anna's", _save=None, _saveasnew="1").status_code == 302
    assert titles() == ["Bob's", "Anna's"]


def test_inlines_and_tags_in_any_order(site: Site) -> None:
    tags = [Tag.objects.create(name=name) for name in "abc"]
    site.article.tags.set(tags)
    row = Paragraph.objects.create(article=site.article, text="Old")
    hers = site.hers()
    order = [tags[2].pk, tags[0].pk, tags[1].pk]
    assert hers.send(tags=order).status_code == 302, "the order is no change"
    text = {"paragraphs-0-text": "Bob's", "paragraphs-1-text": "Bob's second"}
    assert site.his().send(text).status_code == 302
    hers = site.hers()
    removed = {"paragraphs-0-DELETE": "on", "tags": [tags[0].pk]}
    assert site.his().send(removed).status_code == 302
    assert is_refused(hers, {"paragraphs-0-text": "Anna's"})
    assert "Deleted paragraph “Bob&#x27;s”" in hers.errors[1]
    assert "Changed Tags" in hers.errors[1]
    assert not Paragraph.objects.filter(pk=row.pk).exists()
    assert hers.fields["paragraphs-0-text"] == ["Anna's"]


def test_a_chosen_file_is_not_stored_when_the_save_is_refused(site: Site, hers: OpenPage) -> None:
    site.bob_saves()
    assert hers.send(scan=SimpleUploadedFile("scan.txt", b"text")).status_code == 200
    assert "files must be chosen again" in "".join(hers.errors)
    site.article.refresh_from_db()
    assert not site.article.scan
    assert hers.send(scan=SimpleUploadedFile("scan.txt", b"text")).status_code == 302
    site.article.refresh_from_db()
    assert site.article.scan.read() == b"text"


NUMBER = uuid.UUID(int=10**37)
SAME: dict[str, tuple[type[Any], Any, str, str]] = {
    "a child after its parent": (LongArticle, 7, "article/7", "longarticle/7"),
    "a parent after its child": (LongArticle, 7, "longarticle/7", "article/7"),
    "a proxy after its model": (ProxyArticle, 7, "article/7", "proxyarticle/7"),
    "a model after its proxy": (ProxyArticle, 7, "proxyarticle/7", "article/7"),
    "zeros": (Article, 7, "article/007", "article/7"),
    "capitals": (Numbered, NUMBER, f"numbered/{NUMBER.hex.upper()}", f"numbered/{NUMBER}"),
    **{
        key[:9]: (Named, key, f"named/{quote(key)}", f"named/{quote(key)}")
        for key in ("a/b", "a:b", " <b>é", "x" * 300)
    },
}
"""Rows with their keys, and the pages that Anna and Bob open: in all they edit one object."""


@pytest.mark.attack
@pytest.mark.parametrize(("model", "key", "first", "second"), SAME.values(), ids=SAME)
def test_a_row_is_the_same_on_every_page_that_changes_it(
    site: Site, model: type[Any], key: Any, first: str, second: str
) -> None:
    field = "text" if model in (Named, Numbered) else "title"
    model.objects.create(pk=key, **{field: "Old"})
    site.register(model_admin(fields=[field]) if field == "text" else ArticleAdmin, model)
    hers = OpenPage(site.anna, f"/admin/edited/{first}/change/")
    his = OpenPage(site.bob, f"/admin/edited/{second}/change/")
    assert hers.report() == {}
    assert his.report()["message"].startswith("Anna has had this open since ")
    assert his.send({field: "Bob's"}).status_code == 302
    assert is_refused(hers, {field: "Anna's"})


def test_an_object_that_was_deleted_is_not_made_again(site: Site, hers: OpenPage) -> None:
    answer = site.bob.post(f"/admin/edited/article/{site.article.pk}/delete/", {"post": "yes"})
    assert answer.status_code == 302
    assert hers.report() == {"message": "This was deleted after you opened the page."}
    assert hers.send(title="Anna's").status_code == 302
    assert "Perhaps it was deleted?" in site.anna.get("/admin/").content.decode()
    assert titles() == []


def test_a_key_that_was_deleted_and_used_again_is_another_object(site: Site) -> None:
    site.register(model_admin(), Named)
    row = Named.objects.create(name="key")
    hers = site.hers(row)
    site.bob.post("/admin/edited/named/key/delete/", {"post": "yes"})
    site.bob.post("/admin/edited/named/add/", {"name": "key", "text": "Bob's"})
    assert hers.send(text="Anna's").status_code == 200
    assert ["Added" in hers.errors[1], "Deleted" in hers.errors[2]] == [True, True]
    assert Named.objects.get().text == "Bob's"


def test_the_list_and_an_action_are_seen_by_open_pages(site: Site) -> None:
    site.register(model_admin(list_display=("pk", "title"), list_editable=("title",)))
    hers = site.hers()
    listed = {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "form-0-id": site.article.pk}
    saved = {**listed, "form-0-title": "Bob's", "_save": "Save"}
    assert site.bob.post("/admin/edited/article/", saved).status_code == 302
    assert hers.send(title="Anna's").status_code == 200
    assert "Bob" in hers.errors[1]
    chosen = {"action": "delete_selected", "_selected_action": site.article.pk, "post": "yes"}
    assert site.bob.post("/admin/edited/article/", chosen).status_code == 302
    assert LogEntry.objects.filter(action_flag=3).count() == 1
    assert hers.send().status_code == 302
    assert titles() == []


def test_a_save_while_another_save_runs_is_refused_with_what_was_typed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edit_locks, "WAIT", 0.05)
    hers = site.hers()
    with lock(f"edit-save:edited.article:{site.article.pk}"):
        assert elsewhere(lambda: hers.send(title="Anna's").status_code) == 200
        assert hers.errors[0].startswith("Nothing was changed: another save of it has not ended")
        deleting = f"/admin/edited/article/{site.article.pk}/delete/"
        answer = elsewhere(lambda: site.anna.post(deleting, {"post": "yes"}))
        assert answer.url == deleting
        assert "another save of it has not ended" in site.anna.get(deleting).content.decode()
    assert (hers.fields["title"], titles()) == (["Anna's"], ["Old"])
    assert hers.send().status_code == 302


def elsewhere(work: Callable[[], Any]) -> Any:
    """Do something as another task would, which does not hold the locks of this one."""
    return Context().run(work)


def lose(name: str) -> None:
    """Release a lock by force, and let the request that holds it notice that."""
    force_release(name, by="operator")
    with pytest.raises(LockLost):
        lock(name, reentrant=True).acquire().verify()


def test_a_save_whose_lock_is_lost_is_rolled_back_and_keeps_what_was_typed(site: Site) -> None:
    class SlowAdmin(EditLockMixin, ModelAdmin):
        loses = True

        def save_model(self, request: Any, obj: Any, form: Any, change: Any) -> None:
            super().save_model(request, obj, form, change)
            if self.loses:
                lose(f"edit-save:edited.article:{obj.pk}")
            SlowAdmin.loses = False

    site.register(SlowAdmin)
    hers = site.hers()
    assert hers.send(title="Anna's").status_code == 200
    assert hers.errors == [
        "Nothing was changed: its lock could not be acquired or was lost. Try again in a moment."
    ]
    assert (hers.fields["title"], titles()) == (["Anna's"], ["Old"])
    assert LogEntry.objects.count() == 0
    assert "was changed successfully" not in site.anna.get("/admin/").content.decode()
    assert hers.send().status_code == 302
    assert titles() == ["Anna's"]


def hooked(work: Callable[[], None]) -> Any:
    """Return a ModelAdmin that does something after the COMMIT of a save or a deletion."""

    class HookedAdmin(EditLockMixin, ModelAdmin):
        def save_model(self, request: Any, obj: Any, form: Any, change: Any) -> None:
            transaction.on_commit(work)
            super().save_model(request, obj, form, change)

        def delete_model(self, request: Any, obj: Any) -> None:
            transaction.on_commit(work)
            super().delete_model(request, obj)

    return HookedAdmin


def saved(site: Site, *, deletes: bool) -> Any:
    """Return the answer to a save or a deletion."""
    if deletes:
        return site.anna.post(site.change().replace("/change/", "/delete/"), {"post": "yes"})
    return site.hers().send(title="Anna's")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("deletes", [False, True])
def test_a_save_whose_lock_is_lost_during_commit_is_answered_as_saved(
    site: Site, deletes: bool
) -> None:
    """A save that was committed is not answered "Nothing was changed"."""
    site.register(hooked(lambda: lose_lock(f"edit-save:edited.article:{site.article.pk}")))
    answer = saved(site, deletes=deletes)
    assert answer.url == "/admin/edited/article/"
    assert titles() == ([] if deletes else ["Anna's"])
    assert "Nothing was changed" not in site.anna.get("/admin/").content.decode()


def test_a_refusal_is_shown_even_if_its_lock_is_lost(site: Site) -> None:
    """The page that follows has seen the other save, so it must say so."""
    losing: list[str] = []

    class LosingAdmin(EditLockMixin, ModelAdmin):
        def get_fieldsets(self, request: Any, obj: Any = None) -> Any:
            if losing and request.method == "POST":
                lose(losing.pop())
            return super().get_fieldsets(request, obj)

    site.register(LosingAdmin)
    hers, his = site.hers(), site.his()
    his.send(title="Bob's")
    losing.append(f"edit-save:edited.article:{site.article.pk}")
    assert is_refused(hers, title="Anna's")
    assert "its lock could not be acquired or was lost" in hers.errors[-1]
    assert titles() == ["Bob's"]


@pytest.mark.slow
def test_without_a_store_a_page_is_shown_and_a_save_is_refused(
    site: Site, settings: Settings
) -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    settings.REDLOCK = {"default": {"MASTERS": url, "CONNECT_TIMEOUT": 0.1}}
    hers = site.hers()
    assert hers.report() == {}
    assert hers.send(title="Anna's").status_code == 200
    assert hers.errors[0].startswith("Nothing was changed: its lock could not be acquired")
    assert hers.fields["title"] == ["Anna's"]
    settings.REDLOCK = {"default": {**settings.REDLOCK["default"], "ON_UNAVAILABLE": "proceed"}}
    assert hers.report() == {}
    assert hers.send().status_code == 302


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("deletes", [False, True])
def test_a_lock_that_a_hook_does_not_get_after_commit_is_not_a_save_without_effect(
    site: Site, deletes: bool
) -> None:
    def export() -> None:
        with lock("export"):
            pass

    site.register(hooked(export))
    with lock("export"):
        answer = elsewhere(lambda: saved(site, deletes=deletes))
    assert answer.status_code == 423
    assert "Nothing was changed" not in answer.json()["detail"]
    assert titles() == ([] if deletes else ["Anna's"])


def in_a_transaction(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a middleware like that of django-reversion."""

    def middleware(request: Any) -> Any:
        with transaction.atomic():
            return get_response(request)

    return middleware


@pytest.mark.django_db(transaction=True)
def test_a_transaction_around_a_save_is_refused_with_what_to_do(
    site: Site, settings: Settings
) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.in_a_transaction"]
    hers = site.hers()
    assert hers.report() == {}
    with pytest.raises(InvalidRedlock, match=r"^ArticleAdmin: .* of 'default'.*RevisionMiddleware"):
        hers.send(title="Anna's")
    assert titles() == ["Old"]


def test_a_form_without_the_refusal_is_never_saved(site: Site) -> None:
    class OwnAdmin(EditLockMixin, ModelAdmin):
        def get_form(self, request: Any, obj: Any = None, change: Any = False, **more: Any) -> Any:
            return forms.modelform_factory(Article, fields=["title"])

    site.register(OwnAdmin)
    hers = site.hers()
    site.bob_saves()
    with pytest.raises(InvalidRedlock, match=r"OwnAdmin .*call super\(\) in its get_form\(\)"):
        hers.send(title="Anna's")
    assert titles() == ["Bob's"]


def test_a_form_that_the_site_has_changed_is_shown_as_it_is_when_refused(site: Site) -> None:
    class Base(ModelAdmin):
        def get_form(self, request: Any, obj: Any = None, change: Any = False, **more: Any) -> Any:
            form = super().get_form(request, obj, change, **more)
            form.base_fields["title"].help_text = "of the site"
            return form

    site.register(type("ChangedAdmin", (EditLockMixin, Base), {}))
    hers = site.hers()
    site.bob_saves()
    assert is_refused(hers, title="Anna's")
    assert "of the site" in hers.text


def test_a_site_that_does_not_log_is_not_covered(site: Site) -> None:
    """As the page of the documentation states."""
    site.register(model_admin(log_change=lambda *arguments: None))
    hers, his = site.hers(), site.his()
    assert [his.send(title="Bob's").status_code, hers.send().status_code] == [302, 302]


def test_what_a_page_costs(site: Site) -> None:
    """The object and the log are read once more; nothing is for a ModelAdmin without the mixin."""
    counts = []
    for bases, row, field in (
        ((EditLockMixin, ModelAdmin), site.article, "title"),
        ((ModelAdmin,), Numbered.objects.create(text="Old"), "text"),
    ):
        site.register(type("OwnAdmin", bases, {"fields": [field]}), type(row))
        site.hers(row)
        with CaptureQueriesContext(connection) as shown:
            page = site.hers(row)
        with CaptureQueriesContext(connection) as saved:
            assert page.send().status_code == 302
        counts.append([len(shown), len(saved)])
    assert [locked - plain for locked, plain in zip(*counts, strict=True)] == [2, 2]


# Presence.


def held() -> list[str]:
    return [one.resource for one in held_locks().locks]


def test_the_second_user_is_told_who_has_the_page_open_and_since_when(
    site: Site, hers: OpenPage, his: OpenPage
) -> None:
    assert hers.report() == {}
    assert held() == [f"edit:edited.article:{site.article.pk}"]
    said = his.report()["message"]
    assert re.fullmatch(f"Anna has had this open since {MOMENT}", said)
    for _ in range(2):
        assert hers.report() == {}, "she is not told of him"
    assert his.report() == {"message": said}, "since when stays the same"
    hers.report(leaving=1)
    assert held() == []
    assert his.report() == {}
    assert "Bob" in hers.report()["message"]
    assert his.send(title="Bob's").status_code == 302


def test_another_tab_of_the_same_user_is_not_told(site: Site) -> None:
    hers, tab = (site.hers() for _ in range(2))
    assert [hers.report(), tab.report()] == [{}, {"message": ""}]
    hers.report(leaving=1)
    assert tab.report() == {}
    assert held()


def test_a_page_that_does_not_report_ends_with_its_ttl(hers: OpenPage, his: OpenPage) -> None:
    assert hers.script["every"] == "20.0"
    hers.report()
    MemoryBackend.advance(TTL + 1)
    assert his.report() == {}
    assert "Bob" in hers.report()["message"]


def test_a_page_whose_answer_was_lost_goes_on(site: Site, hers: OpenPage) -> None:
    hers.report()
    first = hers.ticket
    hers.report()  # whose answer does not arrive
    hers.ticket = first
    assert hers.report() == {"message": ""}
    assert "Anna" in site.his().report()["message"]
    MemoryBackend.advance(TTL + 1)
    assert hers.report() == {}


@pytest.mark.attack
def test_a_user_neither_renews_nor_releases_the_page_of_another(site: Site) -> None:
    other = Article.objects.create(title="Other")
    hers, his = site.hers(), site.his()
    hers.report()
    his.ticket = hers.ticket
    his.report(leaving=1)
    assert held()
    his.ticket = hers.ticket
    assert "Anna" in his.report()["message"]
    elsewhere = site.hers(other)
    elsewhere.ticket = hers.ticket
    assert elsewhere.report() == {}, "a ticket of another object: the page gets its own"
    assert len(held()) == 2
    inner = Signer(salt="x").sign_object({"user": "1", "ticket": "t", "since": "s"})
    for forged in ("", "x", inner, hers.ticket[:-1]):
        his.ticket = forged
        his.report(leaving=1)
    assert len(held()) == 2


@pytest.mark.attack
def test_reports_need_post_a_csrf_token_a_login_and_the_right_to_change(site: Site) -> None:
    page = site.hers()
    url = page.script["url"]
    assert site.anna.get(url).status_code == 405
    assert Client().post(url).status_code == 302
    reader = User.objects.create_user("reader", is_staff=True)
    reader.user_permissions.set(Permission.objects.filter(codename="view_order"))
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(username="anna"))
    assert strict.post(url).status_code == 403
    assert strict.post(site.change(), page.fields).status_code == 403
    client = Client()
    client.force_login(reader)
    assert client.post(url).status_code == 403
    assert client.post(url.replace(f"/{site.article.pk}/", "/999/")).status_code == 403
    assert held() == []


@pytest.mark.attack
def test_a_user_who_may_only_read_has_nothing_open(site: Site) -> None:
    class ReadAdmin(EditLockMixin, ModelAdmin):
        def has_change_permission(self, request: Any, obj: Any = None) -> bool:
            return bool(request.user.username == "bob")

    site.register(ReadAdmin)
    hers = OpenPage(user("reader"), site.change())
    assert "Old" in hers.text
    assert hers.script == {}
    site.bob_saves()
    assert hers.send().status_code == 403


def test_a_lock_that_another_program_holds_is_shown_as_far_as_it_says_who(site: Site) -> None:
    page = site.hers()
    for about, text in (
        ({}, OTHER),
        ({"editor": "<b>", "since": "x"}, "<b> has had this open"),
        ({"since": "2026-01-01T00:00:00"}, f"{OTHER} since Jan. 1, 2026, midnight"),
    ):
        with lock(f"edit:edited.article:{site.article.pk}", holder=about):
            assert elsewhere(page.report) == {"message": text}


@pytest.mark.attack
def test_names_are_escaped(site: Site) -> None:
    hers = site.hers()
    mallory = user("mallory")
    User.objects.filter(username="mallory").update(first_name="<script>")
    OpenPage(mallory, site.change()).send(title="<b>")
    hers.send()
    assert "&lt;script&gt;, " in hers.errors[1]
    assert "&lt;b&gt;" in hers.errors[1]
