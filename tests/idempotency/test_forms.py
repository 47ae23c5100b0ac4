"""HTML forms: a double click is one submission, and both tabs end on the success page."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from django import forms
from django.core.cache import caches
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template import engines
from django.template.response import TemplateResponse
from django.test import Client
from django.test.client import BOUNDARY, MULTIPART_CONTENT, encode_multipart
from django.views.decorators.cache import cache_page
from django.views.generic import FormView

from redlock_django import IdempotentMixin, idempotent
from redlock_django.models import IdempotencyRecord
from testproject.shop.models import Order
from tests.idempotency.conftest import KEY, InThread, Site, make_order, orders

pytestmark = pytest.mark.django_db(transaction=True)
BROWSER = {"Accept": "text/html"}


class OrderForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = Order
        fields = ("number", "total")


def by_hand(request: HttpRequest, **_: Any) -> HttpResponse:
    """A page without a form class."""
    if request.method == "POST":
        Order.objects.create(number=request.POST["number"], total=1)
        return redirect("/thanks/")
    page = '{% csrf_token %}{{ request.idempotency_field }}<input name="number">'
    return HttpResponse(engines["django"].from_string(page).render({}, request))


class ByClass(IdempotentMixin, FormView):  # type: ignore[type-arg]
    form_class = OrderForm
    success_url = "/thanks/"

    def render_to_response(self, context: dict[str, Any], **_: Any) -> HttpResponse:
        page = "{% csrf_token %}{{ request.idempotency_field }}{{ form }}"
        return HttpResponse(engines["django"].from_string(page).render(context, self.request))

    def form_valid(self, form: Any) -> HttpResponse:
        form.save()
        return super().form_valid(form)


VIEWS = {"by hand": idempotent(by_hand), "by class": ByClass.as_view()}
everywhere = pytest.mark.parametrize("name", VIEWS)


def fields_of(page: Any) -> dict[str, str]:
    """The hidden fields of the page, as a browser sends them."""
    html = page.content.decode()
    inputs = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]+)"', html)
    assert len(inputs) == len(dict(inputs))
    return dict(inputs)


@pytest.fixture
def browser(site: Site) -> Client:
    client = Client(enforce_csrf_checks=True, headers=BROWSER)
    client.cookies = site.client.cookies
    return client


@everywhere
def test_a_double_click_is_one_submission(site: Site, browser: Client, name: str) -> None:
    site.serve(VIEWS[name])
    sent = {**fields_of(browser.get("/")), "number": "A-1", "total": "5"}
    answers = [browser.post("/", sent) for _ in range(2)]
    assert [(answer.status_code, answer["Location"]) for answer in answers] == [
        (302, "/thanks/")
    ] * 2
    assert orders() == IdempotencyRecord.objects.count() == 1


@pytest.mark.usefixtures("records_in_a_file")
def test_the_second_click_waits_for_the_first(site: Site, browser: Client) -> None:
    second: list[InThread] = []

    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        if request.method == "POST":
            second.append(InThread(lambda: browser.post("/", sent)))
            return redirect(f"/thanks/{len(second)}/")
        return by_hand(request)

    site.serve(idempotent(view))
    sent = fields_of(browser.get("/"))
    first = browser.post("/", sent)
    assert first["Location"] == second[0].result["Location"] == "/thanks/1/"


def test_the_first_key_of_a_page_with_two_forms_counts(site: Site, browser: Client) -> None:
    site.serve(VIEWS["by hand"])
    sent = {**fields_of(browser.get("/")), "number": "A-1"}
    for keys in (["k-1", "k-2"], ["k-1", "k-2"], ["k-1"]):
        assert browser.post("/", {**sent, "idempotency_key": keys}).status_code == 302
    assert orders() == 1


def unrendered(request: HttpRequest, **_: Any) -> HttpResponse:
    page = engines["django"].from_string("{{ request.idempotency_field }}{{ form }}")
    return TemplateResponse(request, page, {"form": OrderForm()})


async def async_page(request: HttpRequest, **_: Any) -> HttpResponse:
    return by_hand(request)


PAGES = {
    **VIEWS,
    "unrendered": idempotent(unrendered),
    "async": idempotent(async_page),
    "plain view": unrendered,
}


@pytest.mark.attack
@pytest.mark.parametrize("cached", ["site", "view"])
@pytest.mark.parametrize(
    ("name", "middleware"),
    [
        *((name, True) for name in PAGES),
        # For the others only LockMiddleware knows for which request the form is rendered.
        *((name, False) for name in ("by hand", "by class", "async")),
    ],
)
def test_no_cache_sends_a_key_twice(
    site: Site, plain: None, name: str, cached: str, middleware: bool
) -> None:
    caches["default"].clear()
    listed = [path for path in site.settings.MIDDLEWARE if middleware or "redlock" not in path]
    if cached == "site":
        first, last = (
            f"django.middleware.cache.{kind}CacheMiddleware" for kind in ("Update", "FetchFrom")
        )
        listed = [first, *listed, last]
    site.settings.MIDDLEWARE = listed
    site.serve(cache_page(600)(PAGES[name]) if cached == "view" else PAGES[name])
    pages = [site.client.get("/") for _ in range(2)]
    texts = [page.content.decode() for page in pages]
    assert len({re.findall('name="idempotency_key" value="([^"]+)"', t)[0] for t in texts}) == 2
    for page, text in zip(pages, texts, strict=True):
        assert {"private", "no-cache"} <= set(page["Cache-Control"].split(", "))
        assert 'autocomplete="off"' in text


def test_a_page_without_a_key_may_be_cached(site: Site) -> None:
    site.serve(idempotent(lambda request, **_: HttpResponse("nothing to send")))
    assert "Cache-Control" not in site.client.get("/")


def test_a_form_that_is_corrected_is_another_submission(site: Site, browser: Client) -> None:
    site.serve(ByClass.as_view())
    sent = {**fields_of(browser.get("/")), "number": "A-1", "total": "many"}
    again = browser.post("/", sent)
    assert (again.status_code, orders()) == (200, 0)
    assert b"whole number" in again.content
    corrected = {**fields_of(again), "number": "A-1", "total": "5"}
    assert corrected["idempotency_key"] != sent["idempotency_key"]
    assert browser.post("/", corrected).status_code == 302
    assert orders() == 1


@pytest.mark.parametrize(
    ("state", "data", "status", "words"),
    [
        ("completed", "2", 422, "already submitted"),
        ("uncertain", "1", 409, "not known whether"),
        ("tombstone", "1", 409, "was not processed again"),
    ],
)
def test_refusals_of_forms_are_explained_without_keys(
    site: Site, state: str, data: str, status: int, words: str
) -> None:
    site.serve(idempotent(make_order))

    def send(total: str) -> Any:
        form = {"idempotency_key": KEY, "total": total}
        return site.client.post("/orders/", form, headers=BROWSER)

    assert send("1").status_code == 201
    IdempotencyRecord.objects.update(state=state)
    answer = send(data)
    page = answer.content.decode()
    assert answer.status_code == status
    assert words in page
    assert "dempotency" not in page


def method_override(get_response: Callable[[HttpRequest], Any]) -> Any:
    """A middleware by which a browser, whose forms are POSTs, sends another method."""

    def middleware(request: HttpRequest) -> Any:
        request.method = request.POST.get("_method", request.method)
        return get_response(request)

    return middleware


@pytest.mark.parametrize("kind", [MULTIPART_CONTENT, "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("where", ["header", "field"])
def test_a_form_whose_method_a_middleware_changes(site: Site, kind: str, where: str) -> None:
    """A key in the form was not seen, so it ran twice; one in the header was a 500."""
    site.settings.MIDDLEWARE = [*site.settings.MIDDLEWARE, f"{__name__}.method_override"]

    def view(request: Any, **_: Any) -> HttpResponse:
        make_order(request)
        files = [upload.read() for upload in request.FILES.values()]
        return HttpResponse(f"{request.method} {request.POST['a']} {files}", status=201)

    def send(value: str) -> Any:
        data = {"_method": "PATCH", "a": value}
        if where == "field":
            data["idempotency_key"] = KEY
        body: Any = urlencode(data)
        if kind == MULTIPART_CONTENT:
            upload = SimpleUploadedFile("a.txt", b"one")
            body = encode_multipart(BOUNDARY, {**data, "f": upload})
        headers = {"Idempotency-Key": KEY} if where == "header" else {}
        return site.client.generic("POST", "/", body, kind, headers=headers)

    site.serve(idempotent(view))
    files = [b"one"] if kind == MULTIPART_CONTENT else []
    assert [send("1").content.decode() for _ in range(2)] == [f"PATCH 1 {files}"] * 2
    assert (orders(), send("2").status_code) == (1, 422)
