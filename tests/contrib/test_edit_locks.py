"""Two users edit one object in the admin: no save overwrites what another has saved meanwhile."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django import forms
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.signing import Signer
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext, modify_settings
from django.urls import clear_url_caches, path

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

MEMORY = {"default": {"BACKEND": "redlock_django.backends.memory.MemoryBackend"}}
OTHER = "Another user has had this open"
REFUSED = "Not saved: it was changed after you opened this page."

Register = Callable[..., None]


class ParagraphInline(TabularInline):
    model = Paragraph
    extra = 1


class ArticleAdmin(EditLockMixin, ModelAdmin):
    inlines = (ParagraphInline,)
    save_as = True


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


@pytest.fixture
def register(settings: Settings) -> Iterator[Register]:
    """Return a function that serves a ModelAdmin at /admin/."""
    settings.REDLOCK = MEMORY
    made = ModuleType("urls_of_edit_locks")
    sys.modules[made.__name__] = made
    settings.ROOT_URLCONF = made.__name__
    site = admin.AdminSite()

    def put(admin_class: type[Any] = ArticleAdmin, model: type[Any] = Article) -> None:
        site.register(model, admin_class)
        assert site.check(None) == []
        made.urlpatterns = [path("admin/", site.urls)]  # type: ignore[attr-defined]
        clear_url_caches()

    yield put
    del sys.modules[made.__name__]
    clear_url_caches()


def user(name: str) -> Client:
    client = Client(enforce_csrf_checks=False)
    client.force_login(User.objects.create_superuser(name, first_name=name.title()))
    return client


@pytest.fixture
def anna(db: None) -> Client:
    return user("anna")


@pytest.fixture
def bob(db: None) -> Client:
    return user("bob")


@pytest.fixture
def article(db: None) -> Article:
    row: Article = Article.objects.create(title="Old")
    return row


@pytest.fixture
def hers(register: Register, anna: Client, article: Article) -> OpenPage:
    """The page that Anna has open."""
    register()
    return OpenPage(anna, change(article))


@pytest.fixture
def his(hers: OpenPage, bob: Client, article: Article) -> OpenPage:
    """The page that Bob opens after her."""
    return OpenPage(bob, change(article))


def change(row: Any, model: str = "") -> str:
    quoted = admin.utils.quote(row.pk)
    return f"/admin/edited/{model or row._meta.model_name}/{quoted}/change/"


def titles() -> list[str]:
    return [*Article.objects.order_by("pk").values_list("title", flat=True)]


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


def test_each_later_change_is_told_before_it_is_replaced(
    hers: OpenPage, bob: Client, article: Article
) -> None:
    for title in ("Bob's", "Bob's second"):
        OpenPage(bob, change(article)).send(title=title)
    hers.send(title="Anna's")
    assert [error.count("Bob, ") for error in hers.errors] == [0, 1, 1, 0, 0]
    OpenPage(bob, change(article)).send(title="Bob's third")
    assert hers.send().status_code == 200
    assert [error.count("Bob, ") for error in hers.errors] == [0, 1, 0, 0]
    assert titles() == ["Bob's third"]
    assert hers.send().status_code == 302


def test_a_second_click_and_another_tab_of_the_same_user_are_saved(
    register: Register, anna: Client, article: Article
) -> None:
    register()
    hers, tab = (OpenPage(anna, change(article)) for _ in range(2))
    assert [hers.send(title="Anna's").status_code for _ in range(2)] == [302, 302]
    assert tab.send(title="Anna's second").status_code == 302


def test_a_page_that_was_left_is_refused_when_it_is_shown_again(
    hers: OpenPage, bob: Client, article: Article
) -> None:
    """The browser keeps the page as it was: so does its URL for saves."""
    assert hers.send(title="Anna's").status_code == 302
    assert OpenPage(bob, change(article)).send(title="Bob's").status_code == 302
    assert hers.send(title="Anna's").status_code == 200
    assert titles() == ["Bob's"]


def test_an_invalid_form_keeps_what_its_page_has_seen(
    hers: OpenPage, bob: Client, article: Article
) -> None:
    assert hers.send(title="").status_code == 200
    assert hers.errors == []
    assert OpenPage(bob, change(article)).send(title="Bob's").status_code == 302
    assert hers.send(title="").status_code == 200
    assert hers.errors[0] == REFUSED
    assert hers.send(title="Anna's").status_code == 302


@pytest.mark.attack
def test_a_page_that_does_not_say_what_it_has_seen_has_seen_nothing(
    register: Register, anna: Client, bob: Client, article: Article
) -> None:
    register()
    assert OpenPage(bob, change(article)).send(title="Bob's").status_code == 302
    for seen in ("", "?_edit_seen=", "?_edit_seen=x", "?_edit_seen=-1", f"?_edit_seen={'9' * 20}"):
        hers = OpenPage(anna, change(article))
        hers.action = seen
        assert hers.send(title="Anna's").status_code == 200
        assert hers.errors[0] == REFUSED


def test_the_field_of_the_script_is_used_where_a_theme_replaces_the_url(
    register: Register, anna: Client, bob: Client, article: Article
) -> None:
    register()
    OpenPage(bob, change(article)).send(title="Bob's")
    hers = OpenPage(anna, change(article))
    hers.action = "?_edit_seen=0"  # of an earlier page, kept by the address of the window
    assert hers.send(title="Anna's", _edit_seen=hers.script["seen"]).status_code == 302


def test_what_the_url_of_a_page_has_is_kept(
    register: Register, anna: Client, bob: Client, article: Article
) -> None:
    register()
    query = "?_changelist_filters=title%3DOld&_popup=1&_to_field=id&own=1"
    hers = OpenPage(anna, change(article) + query)
    OpenPage(bob, change(article)).send(title="Bob's")
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


def test_a_popup_that_names_its_object_by_another_field(
    register: Register, anna: Client, bob: Client
) -> None:
    row = Article.objects.create(title="Old", slug="old")
    register()
    register(type("LinkAdmin", (ModelAdmin,), {}), Link)  # which allows it
    hers = OpenPage(anna, "/admin/edited/article/old/change/?_popup=1&_to_field=slug")
    OpenPage(bob, change(row)).send(title="Bob's")
    assert hers.send(title="Anna's").status_code == 200
    assert hers.errors[0] == REFUSED
    hers.send()
    assert titles() == ["Anna's"]
    assert anna.get("/admin/edited/article/old/change/?_to_field=title").status_code == 400


@pytest.mark.parametrize("button", ["_continue", "_addanother", "_save"])
def test_the_buttons_of_a_page(
    register: Register, anna: Client, bob: Client, article: Article, button: str
) -> None:
    register()
    filters = "_changelist_filters=title%3DOld"
    hers = OpenPage(anna, f"{change(article)}?{filters}")
    OpenPage(bob, change(article)).send(title="Bob's")
    assert hers.send({"_save": None, button: "1"}, title="Anna's").status_code == 200
    answer = hers.send({"_save": None, button: "1"})
    assert answer.status_code == 302
    assert anna.get(answer.url).status_code == 200
    if button == "_continue":  # the next page has seen the save, whatever its URL has
        again = OpenPage(anna, answer.url)
        OpenPage(bob, change(article)).send(title="Bob's second")
        assert again.send(title="Anna's").status_code == 200
        assert again.errors[0] == REFUSED
    elif button == "_save":
        assert parse_qs(urlsplit(answer.url).query) == {"title": ["Old"]}


def test_save_as_new_overwrites_nothing(hers: OpenPage, bob: Client, article: Article) -> None:
    OpenPage(bob, change(article)).send(title="Bob's")
    assert hers.send(title="", _save=None, _saveasnew="1").status_code == 200
    assert hers.errors == []
    assert hers.send(title="Anna's", _save=None, _saveasnew="1").status_code == 302
    assert titles() == ["Bob's", "Anna's"]


def test_inlines_and_tags_in_any_order(
    register: Register, anna: Client, bob: Client, article: Article
) -> None:
    register()
    tags = [Tag.objects.create(name=name) for name in "abc"]
    article.tags.set(tags)
    row = Paragraph.objects.create(article=article, text="Old")
    hers = OpenPage(anna, change(article))
    order = [tags[2].pk, tags[0].pk, tags[1].pk]
    assert hers.send(tags=order).status_code == 302, "the order is no change"
    text = {"paragraphs-0-text": "Bob's", "paragraphs-1-text": "Bob's second"}
    assert OpenPage(bob, change(article)).send(text).status_code == 302
    hers = OpenPage(anna, change(article))
    removed = {"paragraphs-0-DELETE": "on", "tags": [tags[0].pk]}
    assert OpenPage(bob, change(article)).send(removed).status_code == 302
    assert hers.send({"paragraphs-0-text": "Anna's"}).status_code == 200
    assert hers.errors[0] == REFUSED
    assert "Deleted paragraph “Bob&#x27;s”" in hers.errors[1]
    assert "Changed Tags" in hers.errors[1]
    assert not Paragraph.objects.filter(pk=row.pk).exists()
    assert hers.fields["paragraphs-0-text"] == ["Anna's"]


def test_a_chosen_file_is_not_stored_when_the_save_is_refused(
    hers: OpenPage, bob: Client, article: Article
) -> None:
    OpenPage(bob, change(article)).send(title="Bob's")
    assert hers.send(scan=SimpleUploadedFile("scan.txt", b"text")).status_code == 200
    assert "files must be chosen again" in "".join(hers.errors)
    article.refresh_from_db()
    assert not article.scan
    assert hers.send(scan=SimpleUploadedFile("scan.txt", b"text")).status_code == 302
    article.refresh_from_db()
    assert article.scan.read() == b"text"


@pytest.mark.parametrize("model", [LongArticle, ProxyArticle])
@pytest.mark.parametrize("is_parent_first", [False, True])
def test_a_row_is_the_same_in_its_parent_and_its_proxy(
    register: Register, anna: Client, bob: Client, model: Any, is_parent_first: bool
) -> None:
    row = model.objects.create(title="Old")
    register()
    register(ArticleAdmin, model)
    paths = [change(row, "article"), change(row)]
    if not is_parent_first:
        paths.reverse()
    hers, his = OpenPage(anna, paths[0]), OpenPage(bob, paths[1])
    hers.report()
    assert his.report()["message"].startswith("Anna has had this open since ")
    assert his.send(title="Bob's").status_code == 302
    assert hers.send(title="Anna's").status_code == 200
    assert hers.errors[0] == REFUSED


@pytest.mark.attack
@pytest.mark.parametrize("name", ["a/b", "a:b", "x" * 300, " <b>é"])
def test_any_primary_key(register: Register, anna: Client, bob: Client, name: str) -> None:
    row = Named.objects.create(name=name)
    register(type("NamedAdmin", (EditLockMixin, ModelAdmin), {"fields": ["text"]}), Named)
    hers, his = (OpenPage(client, change(row)) for client in (anna, bob))
    assert hers.report() == {}
    assert "Anna" in his.report()["message"]
    assert his.send(text="Bob's").status_code == 302
    assert hers.send(text="Anna's").status_code == 200
    assert hers.errors[0] == REFUSED


def test_other_spellings_of_a_key_name_the_same_object(
    register: Register, anna: Client, bob: Client, article: Article
) -> None:
    register()
    register(type("NumberedAdmin", (EditLockMixin, ModelAdmin), {}), Numbered)
    row = Numbered.objects.create(text="Old")
    for own, other, field in (
        (change(row), f"/admin/edited/numbered/{row.pk.hex.upper()}/change/", "text"),
        (change(article), f"/admin/edited/article/00{article.pk}/change/", "title"),
    ):
        hers, his = OpenPage(anna, other), OpenPage(bob, own)
        assert hers.report() == {}
        assert "Anna" in his.report()["message"]
        assert his.send({field: "Bob's"}).status_code == 302
        assert hers.send({field: "Anna's"}).status_code == 200
        assert hers.errors[0] == REFUSED


def test_an_object_that_was_deleted_is_not_made_again(
    hers: OpenPage, anna: Client, bob: Client, article: Article
) -> None:
    answer = bob.post(f"/admin/edited/article/{article.pk}/delete/", {"post": "yes"})
    assert answer.status_code == 302
    assert hers.report() == {"message": "This was deleted after you opened the page."}
    assert hers.send(title="Anna's").status_code == 302
    assert "Perhaps it was deleted?" in anna.get("/admin/").content.decode()
    assert titles() == []


def test_a_key_that_was_deleted_and_used_again_is_another_object(
    register: Register, anna: Client, bob: Client
) -> None:
    register(type("NamedAdmin", (EditLockMixin, ModelAdmin), {}), Named)
    row = Named.objects.create(name="key")
    hers = OpenPage(anna, change(row))
    bob.post("/admin/edited/named/key/delete/", {"post": "yes"})
    bob.post("/admin/edited/named/add/", {"name": "key", "text": "Bob's"})
    assert hers.send(text="Anna's").status_code == 200
    assert ["Added" in hers.errors[1], "Deleted" in hers.errors[2]] == [True, True]
    assert Named.objects.get().text == "Bob's"


def test_the_list_and_an_action_are_seen_by_open_pages(
    register: Register, anna: Client, bob: Client, article: Article
) -> None:
    class ListedAdmin(EditLockMixin, ModelAdmin):
        list_display = ("pk", "title")
        list_editable = ("title",)

    register(ListedAdmin)
    hers = OpenPage(anna, change(article))
    listed = {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "form-0-id": article.pk}
    saved = {**listed, "form-0-title": "Bob's", "_save": "Save"}
    assert bob.post("/admin/edited/article/", saved).status_code == 302
    assert hers.send(title="Anna's").status_code == 200
    assert "Bob" in hers.errors[1]
    chosen = {"action": "delete_selected", "_selected_action": article.pk, "post": "yes"}
    assert bob.post("/admin/edited/article/", chosen).status_code == 302
    assert LogEntry.objects.filter(action_flag=3).count() == 1
    assert hers.send().status_code == 302
    assert titles() == []


def test_a_save_while_another_save_runs_is_refused_with_what_was_typed(
    register: Register, anna: Client, article: Article, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edit_locks, "WAIT", 0.05)
    register()
    hers = OpenPage(anna, change(article))
    with lock(f"edit-save:edited.article:{article.pk}"):
        assert elsewhere(lambda: hers.send(title="Anna's").status_code) == 200
        assert hers.errors[0].startswith("Nothing was changed: another save of it has not ended")
        deleting = f"/admin/edited/article/{article.pk}/delete/"
        answer = elsewhere(lambda: anna.post(deleting, {"post": "yes"}))
        assert answer.url == deleting
        assert "another save of it has not ended" in anna.get(deleting).content.decode()
    assert (hers.fields["title"], titles()) == (["Anna's"], ["Old"])
    assert hers.send().status_code == 302


def elsewhere(work: Callable[[], Any]) -> Any:
    """Do something as another task would, which does not hold the locks of this one."""
    import contextvars

    return contextvars.Context().run(work)


def test_a_save_whose_lock_is_lost_is_rolled_back_and_keeps_what_was_typed(
    register: Register, anna: Client, article: Article
) -> None:
    class SlowAdmin(EditLockMixin, ModelAdmin):
        loses = True

        def save_model(self, request: Any, obj: Any, form: Any, change: Any) -> None:
            super().save_model(request, obj, form, change)
            if self.loses:
                force_release(f"edit-save:edited.article:{obj.pk}", by="operator")
                with pytest.raises(LockLost):
                    lock(f"edit-save:edited.article:{obj.pk}", reentrant=True).acquire().verify()
            SlowAdmin.loses = False

    register(SlowAdmin)
    hers = OpenPage(anna, change(article))
    assert hers.send(title="Anna's").status_code == 200
    assert hers.errors == [
        "Nothing was changed: its lock could not be acquired or was lost. Try again in a moment."
    ]
    assert (hers.fields["title"], titles()) == (["Anna's"], ["Old"])
    assert LogEntry.objects.count() == 0
    assert "was changed successfully" not in anna.get("/admin/").content.decode()
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


def saved(client: Client, article: Article, *, deletes: bool) -> Any:
    """Return the answer to a save or a deletion."""
    page = change(article)
    if deletes:
        return client.post(page.replace("/change/", "/delete/"), {"post": "yes"})
    return OpenPage(client, page).send(title="Anna's")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("deletes", [False, True])
def test_a_save_whose_lock_is_lost_during_commit_is_answered_as_saved(
    register: Register, anna: Client, article: Article, deletes: bool
) -> None:
    """A save that was committed is not answered "Nothing was changed"."""

    register(hooked(lambda: lose_lock(f"edit-save:edited.article:{article.pk}")))
    answer = saved(anna, article, deletes=deletes)
    assert answer.url == "/admin/edited/article/"
    assert titles() == ([] if deletes else ["Anna's"])
    assert "Nothing was changed" not in anna.get("/admin/").content.decode()


def test_a_refusal_is_shown_even_if_its_lock_is_lost(
    register: Register, anna: Client, bob: Client, article: Article
) -> None:
    """The page that follows has seen the other save, so it must say so."""
    losing: list[str] = []

    class LosingAdmin(EditLockMixin, ModelAdmin):
        def get_fieldsets(self, request: Any, obj: Any = None) -> Any:
            if losing and request.method == "POST":
                name = losing.pop()
                force_release(name, by="operator")
                with pytest.raises(LockLost):
                    lock(name, reentrant=True).acquire().verify()
            return super().get_fieldsets(request, obj)

    register(LosingAdmin)
    hers, his = (OpenPage(client, change(article)) for client in (anna, bob))
    his.send(title="Bob's")
    losing.append(f"edit-save:edited.article:{article.pk}")
    assert hers.send(title="Anna's").status_code == 200
    assert hers.errors[0] == REFUSED
    assert "its lock could not be acquired or was lost" in hers.errors[-1]
    assert titles() == ["Bob's"]


@pytest.mark.slow
def test_without_a_store_a_page_is_shown_and_a_save_is_refused(
    register: Register, anna: Client, article: Article, settings: Settings
) -> None:
    register()
    url = f"redis://127.0.0.1:{free_port()}"
    settings.REDLOCK = {"default": {"MASTERS": url, "CONNECT_TIMEOUT": 0.1}}
    hers = OpenPage(anna, change(article))
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
    register: Register, anna: Client, article: Article, deletes: bool
) -> None:
    def export() -> None:
        with lock("export"):
            pass

    register(hooked(export))
    with lock("export"):
        answer = elsewhere(lambda: saved(anna, article, deletes=deletes))
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
    register: Register, anna: Client, article: Article, settings: Settings
) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.in_a_transaction"]
    register()
    hers = OpenPage(anna, change(article))
    assert hers.report() == {}
    with pytest.raises(InvalidRedlock, match=r"^ArticleAdmin: .* of 'default'.*RevisionMiddleware"):
        hers.send(title="Anna's")
    assert titles() == ["Old"]


def test_a_form_without_the_refusal_is_never_saved(
    register: Register, anna: Client, bob: Client, article: Article
) -> None:
    class OwnAdmin(EditLockMixin, ModelAdmin):
        def get_form(self, request: Any, obj: Any = None, change: Any = False, **more: Any) -> Any:
            return forms.modelform_factory(Article, fields=["title"])

    register(OwnAdmin)
    hers = OpenPage(anna, change(article))
    assert OpenPage(bob, change(article)).send(title="Bob's").status_code == 302
    with pytest.raises(InvalidRedlock, match=r"OwnAdmin .*call super\(\) in its get_form\(\)"):
        hers.send(title="Anna's")
    assert titles() == ["Bob's"]


def test_a_form_that_the_site_has_changed_is_shown_as_it_is_when_refused(
    register: Register, anna: Client, bob: Client, article: Article
) -> None:
    class Base(ModelAdmin):
        def get_form(self, request: Any, obj: Any = None, change: Any = False, **more: Any) -> Any:
            form = super().get_form(request, obj, change, **more)
            form.base_fields["title"].help_text = "of the site"
            return form

    register(type("ChangedAdmin", (EditLockMixin, Base), {}))
    hers = OpenPage(anna, change(article))
    OpenPage(bob, change(article)).send(title="Bob's")
    hers.send(title="Anna's")
    assert hers.errors[0] == REFUSED
    assert "of the site" in hers.text


def test_a_site_that_does_not_log_is_not_covered(
    register: Register, anna: Client, bob: Client, article: Article
) -> None:
    """As the page of the documentation states."""
    silent = {"log_change": lambda *arguments: None}
    register(type("SilentAdmin", (EditLockMixin, ModelAdmin), silent))
    hers, his = (OpenPage(client, change(article)) for client in (anna, bob))
    assert [his.send(title="Bob's").status_code, hers.send().status_code] == [302, 302]


def test_what_a_page_costs(
    register: Register, anna: Client, article: Article, settings: Settings
) -> None:
    """The object and the log are read once more; nothing is for a ModelAdmin without the mixin."""
    counts: dict[str, list[int]] = {}
    for name, bases in {"locked": (EditLockMixin, ModelAdmin), "plain": (ModelAdmin,)}.items():
        site_model = Article if name == "locked" else Numbered
        row = article if name == "locked" else Numbered.objects.create(text="Old")
        register(
            type(f"{name}Admin", bases, {"fields": ["title" if row is article else "text"]}),
            site_model,
        )
        OpenPage(anna, change(row))
        with CaptureQueriesContext(connection) as shown:
            page = OpenPage(anna, change(row))
        with CaptureQueriesContext(connection) as saved:
            assert page.send().status_code == 302
        counts[name] = [len(shown), len(saved)]
    assert [a - b for a, b in zip(counts["locked"], counts["plain"], strict=True)] == [2, 2]


# Presence.


def held() -> list[str]:
    return [one.resource for one in held_locks().locks]


def test_the_second_user_is_told_who_has_the_page_open_and_since_when(
    hers: OpenPage, his: OpenPage, article: Article
) -> None:
    assert hers.report() == {}
    assert held() == [f"edit:edited.article:{article.pk}"]
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


def test_another_tab_of_the_same_user_is_not_told(
    register: Register, anna: Client, article: Article
) -> None:
    register()
    hers, tab = (OpenPage(anna, change(article)) for _ in range(2))
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


def test_a_page_whose_answer_was_lost_goes_on(
    hers: OpenPage, bob: Client, article: Article
) -> None:
    hers.report()
    first = hers.ticket
    hers.report()  # whose answer does not arrive
    hers.ticket = first
    assert hers.report() == {"message": ""}
    assert "Anna" in OpenPage(bob, change(article)).report()["message"]
    MemoryBackend.advance(TTL + 1)
    assert hers.report() == {}


@pytest.mark.attack
def test_a_user_neither_renews_nor_releases_the_page_of_another(
    register: Register, anna: Client, bob: Client, article: Article
) -> None:
    register()
    other = Article.objects.create(title="Other")
    hers, his = (OpenPage(client, change(article)) for client in (anna, bob))
    hers.report()
    his.ticket = hers.ticket
    his.report(leaving=1)
    assert held()
    his.ticket = hers.ticket
    assert "Anna" in his.report()["message"]
    elsewhere = OpenPage(anna, change(other))
    elsewhere.ticket = hers.ticket
    assert elsewhere.report() == {}, "a ticket of another object: the page gets its own"
    assert len(held()) == 2
    inner = Signer(salt="x").sign_object({"user": "1", "ticket": "t", "since": "s"})
    for forged in ("", "x", inner, hers.ticket[:-1]):
        his.ticket = forged
        his.report(leaving=1)
    assert len(held()) == 2


@pytest.mark.attack
def test_reports_need_post_a_csrf_token_a_login_and_the_right_to_change(
    register: Register, anna: Client, article: Article
) -> None:
    register()
    page = OpenPage(anna, change(article))
    url = page.script["url"]
    assert anna.get(url).status_code == 405
    assert Client().post(url).status_code == 302
    reader = User.objects.create_user("reader", is_staff=True)
    reader.user_permissions.set(Permission.objects.filter(codename="view_order"))
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(username="anna"))
    assert strict.post(url).status_code == 403
    assert strict.post(change(article), page.fields).status_code == 403
    client = Client()
    client.force_login(reader)
    assert client.post(url).status_code == 403
    assert client.post(url.replace(f"/{article.pk}/", "/999/")).status_code == 403
    assert held() == []


@pytest.mark.attack
def test_a_user_who_may_only_read_has_nothing_open(
    register: Register, bob: Client, article: Article
) -> None:
    class ReadAdmin(EditLockMixin, ModelAdmin):
        def has_change_permission(self, request: Any, obj: Any = None) -> bool:
            return bool(request.user.username == "bob")

    register(ReadAdmin)
    hers = OpenPage(user("reader"), change(article))
    assert "Old" in hers.text
    assert hers.script == {}
    assert OpenPage(bob, change(article)).send(title="Bob's").status_code == 302
    assert hers.send().status_code == 403


def test_a_lock_that_another_program_holds_is_shown_as_far_as_it_says_who(
    register: Register, anna: Client, article: Article
) -> None:
    register()
    page = OpenPage(anna, change(article))
    for about, text in (
        ({}, OTHER),
        ({"editor": "<b>", "since": "x"}, "<b> has had this open"),
        ({"since": "2026-01-01T00:00:00"}, f"{OTHER} since Jan. 1, 2026, midnight"),
    ):
        with lock(f"edit:edited.article:{article.pk}", holder=about):
            assert elsewhere(page.report) == {"message": text}


@pytest.mark.attack
def test_names_are_escaped(register: Register, anna: Client, article: Article) -> None:
    register()
    hers = OpenPage(anna, change(article))
    mallory = user("mallory")
    User.objects.filter(username="mallory").update(first_name="<script>")
    OpenPage(mallory, change(article)).send(title="<b>")
    hers.send()
    assert "&lt;script&gt;, " in hers.errors[1]
    assert "&lt;b&gt;" in hers.errors[1]
