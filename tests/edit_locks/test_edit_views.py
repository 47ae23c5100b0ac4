"""EditLockViewMixin: an UpdateView that saves nothing over what its editor has not seen."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from django import forms
from django.db import connection, models
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from django.views.generic import CreateView, TemplateView, UpdateView

from redlock_django import EditLockViewMixin, InvalidRedlock
from redlock_django.operate.inspection import held_locks
from tests.edit_locks.conftest import reads_of, report
from tests.edit_locks.models import Article, ProxyArticle, Shelf, Tag
from tests.edit_locks.pages import OpenPage

if TYPE_CHECKING:
    from pytest_django import Settings

    _UpdateView = UpdateView[Article, Any]
else:
    _UpdateView = UpdateView

pytestmark = pytest.mark.django_db
TEMPLATE = "<form method=post>{% csrf_token %}{{ form.as_p }}</form>"


class EditArticle(EditLockViewMixin, _UpdateView):
    model = Article
    fields = ("title", "body", "tags")
    template_name = "edit.html"
    success_url = "/"


@pytest.fixture(params=[False, True], ids=["autocommit", "atomic"])
def page(
    request: pytest.FixtureRequest,
    urls: list[Any],
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    article: Article,
) -> str:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", request.param)
    loader = ("django.template.loaders.locmem.Loader", {"edit.html": TEMPLATE})
    loaders = [loader, "django.template.loaders.app_directories.Loader"]
    [engine] = settings.TEMPLATES
    options = {**engine["OPTIONS"], "loaders": loaders}
    settings.TEMPLATES = [{**engine, "APP_DIRS": False, "OPTIONS": options}]
    urls.append(path("<int:pk>/", EditArticle.as_view()))
    return f"/{article.pk}/"


def test_the_second_of_two_saves_is_refused_with_both_versions(
    page: str, client: Client, article: Article
) -> None:
    hers, his = OpenPage(client, page), OpenPage(client, page)
    assert his.send(title="Bob's").status_code == 302
    assert hers.send(title="Anna's", body="typed").status_code == 200
    assert "<td>Anna&#x27;s</td><td>Bob&#x27;s" in hers.text
    assert hers.fields["body"] == ["typed"]
    assert hers.send().status_code == 302
    article.refresh_from_db()
    assert (article.title, article.body) == ("Anna's", "typed")


def test_a_save_reads_its_row_once_more_to_lock_it(page: str, client: Client) -> None:
    hers = OpenPage(client, page)
    assert reads_of(Article, lambda: hers.send(title="Anna's")) == 2
    assert hers.answer.status_code == 302


def test_many_to_many_fields_that_name_a_row_by_another_field(
    page: str, client: Client, urls: list[Any]
) -> None:
    urls.append(path("<str:pk>/", EditArticle.as_view(model=Shelf, fields=("number", "tags"))))
    shelf = Shelf.objects.create(code="a", number=1)
    shelf.tags.set([Tag.objects.create(name="one")])
    hers = OpenPage(client, "/a/")
    shelf.tags.add(Tag.objects.create(name="two"))
    assert hers.send(number="2").status_code == 200
    assert "<td>one</td><td>one, two" in hers.text
    assert shelf.tags.count() == 2
    shelf.tags.clear()
    assert OpenPage(client, "/a/").send(tags=[Tag.objects.get(name="one").pk]).status_code == 302
    assert shelf.tags.get().name == "one"


def test_a_page_says_that_another_has_it_open(page: str, client: Client) -> None:
    hers, his = OpenPage(client, page), OpenPage(Client(), page)
    said = r'<p role="status"[^>]*>(.*?)</p>'
    assert re.findall(said, hers.text) == [""]
    assert re.findall(said, his.text)[0].startswith("Another editor has had this open since")
    reading = OpenPage(Client(), f"{page}?_edit=read").text
    assert 'name="title" value="Old" maxlength="40" disabled' in reading.replace(" required", "")
    assert report(hers, "renew") == {"editor": "", "can_take": False}
    assert report(hers, "leave") == 204
    assert re.findall(said, OpenPage(Client(), page).text) == [""]


def test_a_form_with_a_prefix_says_that_another_has_it_open(
    page: str, client: Client, urls: list[Any]
) -> None:
    urls[:] = [path("<int:pk>/", EditArticle.as_view(prefix="article"))]
    OpenPage(client, page)
    his = OpenPage(Client(), page)
    assert "Another editor has had this open since" in his.text
    assert his.send({"article-title": "Bob's"}).status_code == 302


def test_a_proxy_and_its_model_have_one_lock(page: str, client: Client, urls: list[Any]) -> None:
    OpenPage(client, page)
    urls[:] = [path("<int:pk>/", EditArticle.as_view(model=ProxyArticle))]
    assert "Another editor has had this open since" in OpenPage(Client(), page).text


def test_a_page_to_read_saves_nothing(
    page: str, client: Client, urls: list[Any], article: Article
) -> None:
    """Browsers do not send disabled inputs, so a save would empty the fields."""
    tag = Tag.objects.create(name="kept")
    article.tags.add(tag)
    urls[:] = [path("<int:pk>/", EditArticle.as_view(edit_conflict="refuse"))]
    OpenPage(client, page)
    for read_only in (OpenPage(Client(), page), OpenPage(Client(), f"{page}?_edit=read")):
        assert 'name="tags" disabled' in read_only.text
        disabled = dict.fromkeys(EditArticle.fields)
        answer = read_only.send({**disabled, "title": "Bob's"})
        assert (answer.status_code, answer.url) == (302, read_only.path)
        article.refresh_from_db()
        assert (article.title, [*article.tags.all()]) == ("Old", [tag])


def test_a_save_is_refused_while_another_has_it_open(
    page: str, client: Client, urls: list[Any], article: Article
) -> None:
    """Also where the site has no users: a page is known by its id."""
    urls[:] = [path("<int:pk>/", EditArticle.as_view(edit_conflict="refuse"))]
    his = OpenPage(Client(), page)
    assert report(his, "leave") == 204
    hers = OpenPage(client, page)
    assert his.send(title="Bob's").status_code == 200
    assert "Not saved. Another editor has had this open since" in his.text
    assert his.fields["title"] == ["Bob's"]
    assert hers.send(title="Anna's").status_code == 302
    article.refresh_from_db()
    assert article.title == "Anna's"


def test_a_head_request_opens_no_page(page: str, client: Client) -> None:
    assert client.head(page).status_code == 200
    assert held_locks().locks == ()


def test_a_page_without_the_version_is_refused(page: str, client: Client, article: Article) -> None:
    assert client.post(page, {"title": "Anna's"}).status_code == 200
    article.refresh_from_db()
    assert article.title == "Old"


class NoPrimaryKey(models.Model):
    class Meta:
        abstract = True
        app_label = "edited"

    def __str__(self) -> str:
        return ""


def late(**attributes: Any) -> None:
    type("Late", (_UpdateView, EditLockViewMixin), {"model": Article, **attributes})


def made(*bases: type[Any], **attributes: Any) -> Any:
    view: Any = type("Edit", (EditLockViewMixin, *bases), {"model": Article, **attributes})
    return view.as_view()


async def a_post(self: Any, request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def a_page(self: Any, context: Any) -> HttpResponse:
    return HttpResponse()


def bare_form(self: Any, form_class: Any = None) -> forms.Form:
    return forms.Form()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (late, r"comes after the view.* Write class Late\(EditLockViewMixin, UpdateView\)"),
        (lambda: made(_UpdateView, model=NoPrimaryKey), "has no primary key"),
        (lambda: made(_UpdateView, form_class=forms.Form), "Derive it from .*ModelForm"),
        (lambda: made(CreateView), "is not an UpdateView"),
        (lambda: made(TemplateView), "is not an UpdateView"),
        (lambda: made(_UpdateView, edit_ignored=()), "Write 'edit_ignore'"),
        (lambda: made(_UpdateView, edit_ignore="views"), r"Write edit_ignore = \['views'\]"),
        (lambda: made(_UpdateView, post=a_post), r"post\(\) does not call super\(\)"),
        (lambda: made(_UpdateView, form_valid=a_post), "Write def, not async def"),
        (lambda: made(_UpdateView, get_form=bare_form), r"Call super\(\).get_form"),
        (lambda: EditArticle.as_view(edit_conflict="no"), "must be 'warn' or 'refuse', got 'no'"),
        (lambda: EditArticle.as_view(edit_ignore="views"), r"Write edit_ignore = \['views'\]"),
        (
            lambda: made(_UpdateView, edit_conflict="refuse", render_to_response=a_page),
            r"Call super\(\).render_to_response",
        ),
    ],
)
def test_a_view_that_could_not_compare_is_refused_at_start(make: Any, says: str) -> None:
    with pytest.raises(InvalidRedlock, match=says):
        make()
