"""The answers to a client whose request gets no lock."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from django.template.base import Template as PageTemplate
from django.test import RequestFactory
from django.utils import translation
from pytest_django import Settings

from redlock_django.exceptions import (
    BadResource,
    IncompleteBody,
    LockLost,
    QuorumUnreachable,
    RedlockError,
    ResourceLocked,
    StoreUnavailable,
)
from redlock_django.web.answers import aanswer, answer

if TYPE_CHECKING:
    from pathlib import Path

    from django.http import HttpResponse

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
TALE = {"10.0.0.1:6379": "held by host-7 pid 12"}


def asked(error: RedlockError, accept: str | None = None, **kwargs: Any) -> HttpResponse:
    headers = {} if accept is None else {"Accept": accept}
    return answer(RequestFactory().get("/", headers=headers), error, **kwargs)


@pytest.mark.parametrize(
    ("error", "status", "code", "retryable", "retry_after"),
    [
        (ResourceLocked("x", retry_after=2.1), 423, "resource-locked", True, "3"),
        (ResourceLocked("x", retry_after=0.01), 423, "resource-locked", True, "1"),
        (ResourceLocked("x", retry_after=0), 423, "resource-locked", True, "1"),
        (ResourceLocked("x"), 423, "resource-locked", True, None),
        (QuorumUnreachable("x"), 503, "lock-unavailable", True, "1"),
        (QuorumUnreachable("x", retry_after=41), 503, "lock-unavailable", True, "41"),
        (StoreUnavailable("x"), 503, "lock-unavailable", True, "1"),
        (LockLost("x"), 503, "lock-lost", True, "1"),
        (BadResource("x"), 400, "bad-resource", False, None),
        (IncompleteBody("x"), 400, "incomplete-body", True, "1"),
    ],
)
def test_each_error_has_its_status_and_headers(
    error: RedlockError, status: int, code: str, retryable: bool, retry_after: str | None
) -> None:
    response = asked(error)
    body = json.loads(response.content)
    assert response.status_code == status
    assert response["Content-Type"] == "application/problem+json"
    assert response["Cache-Control"] == "no-store"
    assert response["Vary"] == "Accept"
    assert response.get("Retry-After") == retry_after
    assert list(body) == ["type", "title", "status", "detail", "code", "retryable"]
    assert (body["status"], body["code"], body["retryable"]) == (status, code, retryable)
    assert body["type"] == f"urn:redlock-django:{code}"
    assert body["title"]
    assert body["detail"]


def test_the_status_of_a_held_lock_may_be_another() -> None:
    response = asked(ResourceLocked("x"), status=409)
    assert (response.status_code, json.loads(response.content)["status"]) == (409, 409)
    assert asked(QuorumUnreachable("x"), status=409).status_code == 503


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, "application/problem+json"),
        ("*/*", "application/problem+json"),
        ("", "application/problem+json"),
        ("image/png", "application/problem+json"),
        ("application/problem+json", "application/problem+json"),
        ("application/json", "application/problem+json"),
        ("application/json, text/html;q=0.5", "application/problem+json"),
        ("text/html", "text/html; charset=utf-8"),
        (BROWSER, "text/html; charset=utf-8"),
        ("text/html;q=0.1, application/json", "application/problem+json"),
        ("utter ;;; nonsense,,", "application/problem+json"),
    ],
)
def test_the_client_chooses_the_form(accept: str | None, content_type: str) -> None:
    response = asked(ResourceLocked("x"), accept)
    assert response["Content-Type"] == content_type
    assert response.status_code == 423


@pytest.mark.parametrize("accept", ["application/json", "text/html", "*/*"])
@pytest.mark.parametrize("kind", [ResourceLocked, QuorumUnreachable, LockLost, BadResource])
def test_answers_reveal_neither_holders_nor_masters(accept: str, kind: type[RedlockError]) -> None:
    error = kind("'order:4711' held by host-7", resource="order:4711", tally=TALE)
    shown = asked(error, accept).content.decode()
    for secret in ("order:4711", "host-7", "10.0.0.1", "6379"):
        assert secret not in shown


def test_the_page_is_whole_and_plain() -> None:
    page = asked(ResourceLocked("x", retry_after=2), BROWSER).content.decode()
    assert page.startswith("<!DOCTYPE html>\n<html lang=")
    assert '<meta name="color-scheme" content="light dark">' in page
    assert "<main>" in page
    assert page.count("<h1>") == 1
    assert "try again in 2 seconds" in page
    assert page.count("<style>") == 1
    assert "<script" not in page
    assert " style=" not in page


@pytest.mark.parametrize(
    ("method", "error", "is_link"),
    [
        ("get", ResourceLocked("x", retry_after=2), True),
        ("get", LockLost("x"), True),
        ("get", BadResource("x"), False),
        ("post", ResourceLocked("x", retry_after=2), False),  # a link would send a GET
    ],
)
def test_the_page_links_to_a_retry(method: str, error: RedlockError, is_link: bool) -> None:
    request = getattr(RequestFactory(), method)("/", headers={"Accept": BROWSER})
    page = answer(request, error).content.decode()
    assert ('<a class="retry" href="">Try again</a>' in page) is is_link
    assert ("go back and try again" in page) is (method == "post")


def test_the_page_says_one_second() -> None:
    assert "in 1 second." in asked(LockLost("x"), "text/html").content.decode()


def test_the_page_reads_from_right_to_left_where_the_language_does() -> None:
    with translation.override("he"):
        assert 'dir="rtl"' in asked(LockLost("x"), "text/html").content.decode()


def test_a_site_extends_the_page(tmp_path: Path, settings: Settings) -> None:
    own = tmp_path / "redlock_django" / "refused.html"
    own.parent.mkdir()
    own.write_text("own page: {{ problem.code }} {{ retry_after }} {{ request.path }}")
    (engine,) = settings.TEMPLATES
    settings.TEMPLATES = [{**engine, "DIRS": [tmp_path]}]
    shown = asked(ResourceLocked("x", retry_after=5), "text/html").content.decode()
    assert shown == "own page: resource-locked 5 /"


def test_a_site_without_templates_still_refuses(settings: Settings) -> None:
    settings.TEMPLATES = []
    response = asked(ResourceLocked("x"), "text/html")
    assert response.status_code == 423
    assert response["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("accept", ["text/html", "application/json"])
async def test_the_async_way_gives_the_same(accept: str) -> None:
    made = RequestFactory().get("/", headers={"Accept": accept})
    error = ResourceLocked("x", retry_after=3)
    one, other = answer(made, error, status=409), await aanswer(made, error, status=409)
    assert (one.status_code, one.content) == (other.status_code, other.content)
    assert one.headers == other.headers


async def test_the_page_of_an_async_view_may_block(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.utils.asyncio import async_unsafe

    @async_unsafe
    def render(*args: Any) -> str:
        return "asked the database"

    monkeypatch.setattr(PageTemplate, "render", render)
    made = RequestFactory().get("/", headers={"Accept": "text/html"})
    assert (await aanswer(made, LockLost("x"))).content == b"asked the database"
