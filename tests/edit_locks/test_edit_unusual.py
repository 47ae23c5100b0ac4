"""Unusual forms and lists: a primary key to edit, no field, no version, a filter in motion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django import forms
from django.contrib import admin
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from redlock_django import EditLockMixin
from redlock_django.edit_locks.forms import locked_row
from redlock_django.edit_locks.saving_transaction import SavingTransaction
from redlock_django.edit_locks.versions import locked_rows
from tests.edit_locks.conftest import opened, reads_of
from tests.edit_locks.models import Article, Country, Paragraph, Picture, Tag

pytestmark = pytest.mark.django_db
Base: Any = admin.ModelAdmin
INLINES = [type("Paragraphs", (admin.TabularInline,), {"model": Paragraph, "extra": 1})]


def test_a_new_primary_key_overwrites_no_other_row(
    register: Callable[..., None], anna: Client
) -> None:
    register(type("CountryAdmin", (EditLockMixin, Base), {}), Country)
    Country.objects.create(code="at", name="Austria")
    Country.objects.create(code="au", name="Australia")
    hers = opened(anna, "/admin/edited/country/at/change/", "country_form")
    assert hers.send(code="au", name="typed").status_code == 200
    assert "Country with this Code already exists" in hers.text
    assert hers.fields["name"] == ["typed"]
    assert Country.objects.get(code="au").name == "Australia"
    assert hers.send(code="xy").status_code == 302
    assert Country.objects.count() == 3, "as in Django: a new row"


def test_a_deleted_row_of_a_user_who_may_not_add_one(
    register: Callable[..., None], anna: Client, article: Article, change: str
) -> None:
    may_not = {"has_add_permission": lambda self, request: False}
    register(type("ArticleAdmin", (EditLockMixin, Base), may_not))
    hers = opened(anna, change)
    article.delete()
    answer = hers.send(title="typed")
    assert (answer.status_code, answer.url) == (302, "/admin/")
    assert not Article.objects.exists()


def test_a_row_without_its_version_is_not_deleted(
    register: Callable[..., None], anna: Client, article: Article, change: str
) -> None:
    """As from a page that was open before the site had edit locks, or of another template."""
    register(type("ArticleAdmin", (EditLockMixin, Base), {"inlines": INLINES}))
    article.paragraphs.create(text="1")
    hers = opened(anna, change)
    article.paragraphs.update(text="Bob's")
    deletion = {"paragraphs-0-DELETE": "on"}
    assert hers.send(deletion, **{"paragraphs-0-_edit_version": None}).status_code == 200
    assert "this paragraph was changed" in hers.text
    assert article.paragraphs.count() == 1
    assert hers.send(deletion).status_code == 302
    assert article.paragraphs.count() == 0


def test_a_row_that_may_be_deleted_but_not_changed_is_compared(
    register: Callable[..., None], anna: Client, article: Article, change: str
) -> None:
    may_not = {"has_change_permission": lambda self, request, obj=None: False}
    inline = type("Paragraphs", (admin.TabularInline,), {"model": Paragraph, **may_not})
    register(type("ArticleAdmin", (EditLockMixin, Base), {"inlines": [inline]}))
    article.paragraphs.create(text="1")
    hers = opened(anna, change)
    article.paragraphs.update(text="Bob's")
    deletion = {"paragraphs-0-DELETE": "on"}
    assert hers.send(deletion).status_code == 200
    assert "this paragraph was changed" in hers.text
    assert article.paragraphs.count() == 1
    assert hers.send(deletion).status_code == 302
    assert article.paragraphs.count() == 0


def test_a_form_without_fields_saves_its_inlines(
    register: Callable[..., None], anna: Client, article: Article, change: str
) -> None:
    fields = ("title", "body")
    attributes = {"inlines": INLINES, "fields": fields, "readonly_fields": fields}
    register(type("ArticleAdmin", (EditLockMixin, Base), attributes))
    article.paragraphs.create(text="1")
    hers = opened(anna, change)
    Article.objects.update(title="Bob's")
    assert hers.send({"paragraphs-0-text": "Anna's"}).status_code == 302
    hers = opened(anna, change)
    article.paragraphs.update(text="Bob's")
    assert hers.send({"paragraphs-0-text": "typed"}).status_code == 200
    assert "this paragraph was changed" in hers.text
    article.refresh_from_db()
    assert (article.title, article.paragraphs.get().text) == ("Bob's", "Bob's")


class TagForm(forms.ModelForm):  # type: ignore[type-arg]
    """A form that is saved in other tables, too."""

    articles = forms.ModelMultipleChoiceField(Article.objects.all(), required=False)
    new = forms.CharField(initial=uuid4, required=False)
    ignored = forms.CharField(required=False)
    shown = forms.CharField(disabled=True)
    codes = forms.CharField(required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["ignored"] = self.initial["shown"] = uuid4()
        self.initial["codes"] = {8, 0} if self.is_bound else {0, 8}  # in another order
        if self.instance.pk:
            self.fields["articles"].initial = {*self.instance.article_set.all()}

    def _save_m2m(self) -> None:
        self.instance.article_set.set(self.cleaned_data["articles"])


def test_a_field_that_is_saved_in_another_table_is_compared(
    register: Callable[..., None], anna: Client, bob: Client, article: Article
) -> None:
    about = {"form": TagForm, "edit_ignore": ("ignored",)}
    register(type("TagAdmin", (EditLockMixin, Base), about), Tag)
    tag = Tag.objects.create(name="tag")
    path = f"/admin/edited/tag/{tag.pk}/change/"
    hers, his = (opened(client, path, "tag_form") for client in (anna, bob))
    assert his.send(articles=[article.pk]).status_code == 302
    assert hers.send(name="Anna's").status_code == 200
    assert '<th scope="row">Articles</th><td>–</td><td>Old' in hers.text
    assert tag.article_set.get() == article
    assert hers.send().status_code == 302
    assert not tag.article_set.exists()


def test_a_form_reads_other_tables_after_its_row_is_locked(
    register: Callable[..., None], anna: Client, article: Article, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_for_bob(row: Any, saving: Any) -> None:
        tag.article_set.add(article)

    about = {"form": TagForm, "edit_ignore": ("ignored",)}
    register(type("TagAdmin", (EditLockMixin, Base), about), Tag)
    tag = Tag.objects.create(name="tag")
    hers = opened(anna, f"/admin/edited/tag/{tag.pk}/change/", "tag_form")
    monkeypatch.setattr("redlock_django.edit_locks.model_admin.mixin.locked_row", wait_for_bob)
    assert hers.send(name="Anna's").status_code == 200
    assert tag.article_set.get() == article


class TagsForm(forms.ModelForm):  # type: ignore[type-arg]
    """A form of a row in an inline, which is saved in the table of tags, too."""

    all_tags = forms.ModelMultipleChoiceField(Tag.objects.all(), required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk:
            self.initial["all_tags"] = [one.pk for one in self.instance.tags.all()]

    def _save_m2m(self) -> None:
        self.instance.tags.set(self.cleaned_data["all_tags"])


class FormSet(forms.BaseInlineFormSet):  # type: ignore[type-arg]
    """A formset that changes its forms when it is made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for form in self.forms:
            tags: Any = form.fields["all_tags"]
            tags.queryset = Tag.objects.exclude(name="secret")


@pytest.fixture
def tagged(register: Callable[..., None], article: Article) -> Any:
    """Make an admin with an inline that is saved in another table; return a row of it."""
    about = {"model": Paragraph, "form": TagsForm, "formset": FormSet, "fields": ("text",)}
    inline = type("Paragraphs", (admin.TabularInline,), {**about, "extra": 0})
    register(type("ArticleAdmin", (EditLockMixin, Base), {"inlines": [inline]}))
    return article.paragraphs.create(text="1")


def test_a_refusal_shows_what_a_row_of_an_inline_has_in_another_table(
    anna: Client, bob: Client, change: str, tagged: Any
) -> None:
    tag = Tag.objects.create(name="Bob's")
    hers, his = (opened(client, change) for client in (anna, bob))
    assert his.send({"paragraphs-0-all_tags": [tag.pk]}).status_code == 302
    assert hers.send({"paragraphs-0-text": "Anna's"}).status_code == 200
    assert '<th scope="row">All tags</th><td>–</td><td>Bob&#x27;s' in hers.text
    assert tagged.tags.get() == tag


def test_an_inline_reads_other_tables_after_its_rows_are_locked(
    anna: Client, change: str, tagged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock_after_bob(model: type[Any], *about: Any) -> Any:
        if model is Paragraph:
            tagged.tags.set([tag])
        return locked_rows(model, *about)

    tag = Tag.objects.create(name="Bob's")
    hers = opened(anna, change)
    monkeypatch.setattr("redlock_django.edit_locks.forms.locked_rows", lock_after_bob)
    assert hers.send({"paragraphs-0-text": "Anna's"}).status_code == 200
    assert tagged.tags.get() == tag


def test_a_formset_may_change_its_forms_when_it_is_made(
    anna: Client, change: str, tagged: Any
) -> None:
    secret = Tag.objects.create(name="secret")
    hers = opened(anna, change)
    assert hers.send({"paragraphs-0-all_tags": [secret.pk]}).status_code == 200
    assert not tagged.tags.exists()


def test_a_save_reads_its_row_once_more_to_lock_it(
    register: Callable[..., None], anna: Client, article: Article, change: str
) -> None:
    register(type("ArticleAdmin", (EditLockMixin, Base), {}))
    hers = opened(anna, change)
    assert reads_of(Article, lambda: hers.send(title="Anna's")) == 2
    assert hers.answer.status_code == 302


def test_each_transaction_reads_a_locked_row_again(article: Article) -> None:
    saving = SavingTransaction()
    for title in ("Anna's", "Bob's"):
        Article.objects.update(title=title)
        with saving:
            stored = locked_row(article, saving)
            assert locked_row(article, saving) is stored
        assert stored is not None
        assert str(stored) == title


def test_a_save_does_not_read_an_image_that_it_does_not_replace(
    register: Callable[..., None], anna: Client
) -> None:
    register(type("PictureAdmin", (EditLockMixin, Base), {}), Picture)
    row = Picture.objects.create(title="Old", image="is not stored any more")
    hers = opened(anna, f"/admin/edited/picture/{row.pk}/change/", "picture_form")
    assert hers.send(title="Anna's").status_code == 302
    row = Picture.objects.get()
    assert (row.title, row.image.name, row.width) == ("Anna's", "is not stored any more", 1)


def test_a_list_without_a_row_that_was_deleted_keeps_each_file_with_its_row(
    register: Callable[..., None], anna: Client
) -> None:
    attributes = {"list_display": ("title", "scan"), "list_editable": ("scan",)}
    register(type("PictureAdmin", (EditLockMixin, Base), attributes), Picture)
    last, middle, first = (Picture.objects.create(title=title) for title in "cba")
    page = opened(anna, "/admin/edited/picture/", "changelist-form")
    assert page.fields["form-1-id"] == [str(middle.pk)]
    first.delete()
    files = {"form-1-scan": SimpleUploadedFile("new.txt", b"new")}
    assert page.send(files, _save="Save").status_code == 302
    assert {row.pk: row.scan.name for row in Picture.objects.all()} == {
        middle.pk: "new.txt",
        last.pk: "",
    }


def test_a_form_of_hidden_fields_is_compared(
    register: Callable[..., None], anna: Client, article: Article, change: str
) -> None:
    def hidden(self: Any, field: Any, request: Any, **kwargs: Any) -> Any:
        return Base.formfield_for_dbfield(self, field, request, widget=forms.HiddenInput())

    attributes = {"fields": ("title", "body"), "formfield_for_dbfield": hidden}
    register(type("ArticleAdmin", (EditLockMixin, Base), attributes))
    hers = opened(anna, change)
    assert hers.send(title="Anna's").status_code == 302
    hers = opened(anna, change)
    Article.objects.update(title="Bob's")
    assert hers.send(title="Anna's second").status_code == 200
    article.refresh_from_db()
    assert article.title == "Bob's"


def test_an_action_changes_no_row_that_its_filter_matches_later(
    register: Callable[..., None], anna: Client, article: Article
) -> None:
    other = Article.objects.create(title="Other")

    def note(self: Any, request: Any, queryset: Any) -> None:
        Article.objects.filter(pk=other.pk).update(state="draft")  # as another editor just did
        queryset.update(body="noted")

    attributes = {"list_filter": ("state",), "actions": ("note",), "note": note}
    register(type("ArticleAdmin", (EditLockMixin, Base), attributes))
    page = opened(anna, "/admin/edited/article/?state__exact=draft", "changelist-form")
    Article.objects.filter(pk=other.pk).update(state="public")
    chosen = [str(article.pk), str(other.pk)]
    assert page.send(action="note", index="0", _selected_action=chosen).status_code == 302
    noted = {row.title: row.body for row in Article.objects.all()}
    assert noted == {"Old": "noted", "Other": ""}


def test_a_template_of_a_deletion_may_leave_out_what_django_ignores(
    register: Callable[..., None], anna: Client, article: Article
) -> None:
    """Django deletes one row without the field `post`, which it needs for delete_selected."""
    register(type("ArticleAdmin", (EditLockMixin, Base), {}))
    path = f"/admin/edited/article/{article.pk}/delete/"
    page = opened(anna, path, "")
    article.paragraphs.create(text="new")
    assert page.send(post=None).url == path, "refused"
    assert article.paragraphs.exists()
    assert opened(anna, path, "").send(post=None).status_code == 302
    assert not Article.objects.exists()
