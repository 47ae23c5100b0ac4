"""A ModelAdmin in which rows could not be compared is refused at start, with what to write."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django import forms
from django.contrib import admin
from django.core.checks import CheckMessage
from django.test import Client

from redlock_django import EditLockMixin, InvalidRedlock
from tests.edit_locks.conftest import opened
from tests.edit_locks.models import Article, Paragraph

Base: Any = admin.ModelAdmin


def errors(**attributes: Any) -> list[CheckMessage]:
    made: Any = type("ArticleAdmin", (EditLockMixin, Base), attributes)
    return [one for one in made(Article, admin.AdminSite()).check() if one.id.startswith("redlock")]


def test_the_mixin_after_model_admin() -> None:
    with pytest.raises(
        InvalidRedlock, match=r"Write class ArticleAdmin\(EditLockMixin, admin\.ModelAdmin\)"
    ):
        type("ArticleAdmin", (Base, EditLockMixin), {})


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("edit_ignored", (), "no option 'edit_ignored'. Write 'edit_ignore'"),
        ("edit_ignore", "views", r"Write edit_ignore = \['views'\]"),
        (
            "edit_conflict",
            "ask",
            "'warn' or 'refuse', got 'ask'. Write edit_conflict = 'warn'",
        ),
        ("edit_reading_actions", "export", "must be a list of names"),
    ],
)
def test_a_wrong_option(option: str, value: Any, says: str) -> None:
    with pytest.raises(InvalidRedlock, match=says):
        type("ArticleAdmin", (EditLockMixin, Base), {option: value})


def bare(self: Any, *args: Any, **kwargs: Any) -> Any:
    return None


def calls_super(self: Any, request: Any, obj: Any = None, **kwargs: Any) -> Any:
    return super(type(self), self).get_form(request, obj, **kwargs)


class Inner(admin.TabularInline):  # type: ignore[type-arg]
    model = Paragraph
    inlines = ("another",)


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"edit_ignore": ("view",)}, "edit_ignore names 'view', which is not a field"),
        ({"get_form": bare}, r"get_form\(\) does not call super\(\), which EditLockMixin needs"),
        ({"changeform_view": bare}, r"changeform_view\(\) does not call super"),
        ({"get_actions": bare}, r"get_actions\(\) does not call super"),
        ({"user_change_password": bare}, r"user_change_password\(\) does not call super"),
        ({"revision_view": bare}, r"revision_view\(\) does not call super"),
        ({"recover_view": bare}, r"recover_view\(\) does not call super"),
        ({"history_form_view": bare}, r"history_form_view\(\) does not call super"),
        ({"edit_using": "other"}, "edit_using is 'other', which is not in REDLOCK"),
        ({"edit_conflict": "refuse", "has_change_permission": bare}, "which EditLockMixin needs"),
        ({"inlines": (Inner,)}, "Inner has inlines of its own"),
        ({"actions_detail": ("publish",)}, "runs without the version of a row"),
    ],
)
def test_a_bypass_is_an_error_of_the_checks(attributes: dict[str, Any], says: str) -> None:
    [error] = errors(**attributes)
    assert error.id == "redlock_django.E060"
    assert re.search(says, error.msg)
    assert error.hint


class AddsField(forms.ModelForm):  # type: ignore[type-arg]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["added"] = forms.CharField()


def test_what_keeps_the_promise_is_no_error() -> None:
    assert errors() == []
    assert errors(form=AddsField, edit_ignore=("added",)) == []
    assert errors(get_form=calls_super, save_model=bare, edit_ignore=("views",)) == []
    assert errors(actions_detail=("show",), edit_reading_actions=("show",)) == []


class OwnForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = Article
        fields = ("title",)


@pytest.mark.django_db
def test_a_form_that_is_not_compared_saves_nothing(
    register: Any, anna: Client, article: Article, change: str
) -> None:
    def get_form(self: Any, request: Any, obj: Any = None, **kwargs: Any) -> Any:
        super(type(self), self).get_form(request, obj, **kwargs)  # and drops it
        return OwnForm

    register(
        type("ArticleAdmin", (EditLockMixin, Base), {"get_form": get_form, "fields": ["title"]})
    )
    with pytest.raises(InvalidRedlock, match=r"not compared with its row. Call super\(\)"):
        opened(anna, change).send(title="Anna's")
    article.refresh_from_db()
    assert article.title == "Old"


class ParagraphForms(forms.BaseInlineFormSet):  # type: ignore[type-arg]
    """As those of django-polymorphic, each of whose rows may have a form of another class."""

    def _construct_form(self, i: int, **kwargs: Any) -> Any:
        self.form = forms.modelform_factory(Paragraph, fields=["text"])
        return super()._construct_form(i, **kwargs)  # type: ignore[misc]


@pytest.mark.django_db
def test_a_formset_whose_forms_are_of_other_classes_is_not_shown(
    register: Any, anna: Client, article: Article, change: str
) -> None:
    about = {"model": Paragraph, "formset": ParagraphForms, "extra": 0}
    inline: Any = type("Paragraphs", (admin.TabularInline,), about)
    register(type("ArticleAdmin", (EditLockMixin, Base), {"inlines": [inline]}))
    article.paragraphs.create(text="1")
    with pytest.raises(InvalidRedlock, match=r"must be of the class .* Give edited\.Paragraph a"):
        opened(anna, change)


@pytest.mark.django_db
def test_a_save_model_without_super_overwrites_nothing(
    register: Any, anna: Client, article: Article, change: str
) -> None:
    def save_model(self: Any, request: Any, obj: Any, form: Any, change: bool) -> None:
        Article.objects.filter(pk=obj.pk).update(title=obj.title)

    register(type("ArticleAdmin", (EditLockMixin, Base), {"save_model": save_model}))
    hers = opened(anna, change)
    Article.objects.update(body="Bob's")
    assert hers.send(title="Anna's").status_code == 200
    article.refresh_from_db()
    assert article.title == "Old"
