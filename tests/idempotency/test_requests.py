"""One request, its record and its replay: what the contract does not show."""

from __future__ import annotations

import functools
import logging
import tracemalloc
import zlib
from collections.abc import Callable
from traceback import walk_tb
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.db import connection, transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.test.utils import CaptureQueriesContext
from django.views.decorators.clickjacking import xframe_options_exempt
from django.views.decorators.csrf import csrf_exempt

from redlock_django import idempotent, locks
from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.key import Idempotency, lock_name
from redlock_django.locking.reports import counters
from redlock_django.models import IdempotencyRecord
from redlock_django.signals import request_replayed
from redlock_django.testing import held_elsewhere
from tests.idempotency.conftest import KEY, Site, make_order, orders, record

pytestmark = pytest.mark.django_db(transaction=True)


def test_other_methods_have_no_transaction_of_their_own(site: Site, plain: None) -> None:
    def durable(request: HttpRequest, **_: Any) -> HttpResponse:
        with transaction.atomic(durable=True):
            return make_order(request)

    site.serve(idempotent(durable))
    assert site.client.get("/orders/").status_code == 201


def test_a_method_that_needs_no_key_is_left_alone(site: Site) -> None:
    site.serve(idempotent(make_order))
    answers = [site.client.get("/", headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert orders() == 2
    assert {answer["Idempotency-Status"] for answer in answers} == {"ignored"}


# The content of a replay.


KEPT = {
    "ETag": '"1"',
    "Content-Language": "de",
    "HX-Redirect": "/thanks/",
    "HX-Trigger": '{"paid": 7}',
    "X-Inertia": "true",
    "Content-Location": "/orders/7/",
    "Retry-After": "120",
    "WWW-Authenticate": 'Bearer scope="pay"',
    "X-Shop": "one, two",
}
NOT_KEPT = {
    "Set-Cookie": "seen=1",
    "Date": "Sat, 28 Nov 2026 00:00:00 GMT",
    "Server": "shop",
    "Connection": "X-Hop",
    "X-Hop": "1",
    "Keep-Alive": "timeout=5",
    "Proxy-Authenticate": "Basic",
    "Proxy-Authorization": "Basic eA==",
    "Proxy-Connection": "close",
    "TE": "trailers",
    "Trailer": "Expires",
    "Transfer-Encoding": "identity",
    "Upgrade": "h2c",
}


@pytest.mark.attack
@pytest.mark.parametrize("status", [202, 401, 429])
@pytest.mark.parametrize("is_async", [False, True])
def test_all_headers_are_replayed_but_those_of_the_connection_and_cookies(
    site: Site, plain: None, is_async: bool, status: int
) -> None:
    """An HTMX client stayed on its page after a replay, and a polling one did not wait."""

    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        response = HttpResponse("later", status=status, headers={**KEPT, **NOT_KEPT})
        response.set_cookie("session", "secret")
        return response

    async def aview(request: HttpRequest, **_: Any) -> HttpResponse:
        return view(request)

    site.serve(idempotent(aview if is_async else view))
    first, again = site.post(), site.post()
    assert (again.status_code, again["Idempotent-Replayed"]) == (status, "true")
    assert {name: again.get(name) for name in KEPT} == KEPT
    assert {name: first.get(name) for name in NOT_KEPT} == NOT_KEPT
    assert [name for name in NOT_KEPT if name in again] == []
    assert first.cookies["session"].value == "secret"
    assert "session" not in again.cookies


def test_what_is_noted_on_a_response_is_replayed_by_a_decorator_above(site: Site) -> None:
    """An attribute of the response is no header: only a decorator above sets it on a replay."""
    site.settings.MIDDLEWARE = [
        *site.settings.MIDDLEWARE,
        "django.middleware.clickjacking.XFrameOptionsMiddleware",
    ]
    site.serve(xframe_options_exempt(idempotent(make_order)))
    first, again = site.post(), site.post()
    assert again["Idempotent-Replayed"] == "true"
    assert [answer.get("X-Frame-Options") for answer in (first, again)] == [None, None]
    site.serve(idempotent(xframe_options_exempt(make_order)))
    assert site.post()["X-Frame-Options"] == "DENY"


def test_a_response_without_a_content_type_stays_without(site: Site) -> None:
    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        response = HttpResponse(status=204)
        del response["Content-Type"]
        return response

    site.serve(idempotent(view))
    assert ["Content-Type" in site.post() for _ in range(2)] == [False, False]


def test_a_replay_sends_a_signal(site: Site, hear: Callable[..., list[dict[str, Any]]]) -> None:
    signals = hear(request_replayed)
    site.serve(idempotent(make_order))
    site.post()
    assert signals == []
    site.post()
    (sent,) = signals
    assert (sent["sender"], sent["using"]) == (Idempotency, "default")
    assert sent["key_hash"] == record().key_hash
    assert (sent["request"].path, sent["response"].status_code) == ("/orders/", 201)


# request.idempotency in a view.


def test_a_derived_key_is_the_same_whenever_the_request_is_tried_again(site: Site) -> None:
    seen: list[tuple[str, str]] = []

    def view(request: Any, **_: Any) -> HttpResponse:
        seen.append(tuple(request.idempotency.derived_key(name) for name in ("charge", "mail")))
        raise RuntimeError

    site.serve(idempotent(view))
    site.post("a")
    site.post('"a"')
    site.post("b")
    site.post(None)
    site.post(None)
    assert seen[0] == seen[1]
    every = [key for pair in seen[1:] for key in pair]
    assert len(set(every)) == len(every) == 8


def test_nothing_that_is_shown_or_logged_or_kept_holds_the_key_or_the_body(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []

    def view(request: Any, **_: Any) -> HttpResponse:
        kept = {name: value for name, value in vars(request).items() if "redlock" in name}
        shown.append(repr(request.idempotency) + repr(kept))
        backend: Any = locks["default"].backend
        shown.extend(str(vars(master)) for master in backend.masters)
        return HttpResponse("done")

    site.serve(idempotent(view))
    secret_body = {"card": "4111-1111"}
    for _ in range(2):
        site.post("my-secret-key", secret_body)
    site.post("my-secret-key", {"card": "other"})
    row = IdempotencyRecord.objects.values().get()
    everything = " ".join([*shown, str(row), caplog.text, repr(record()), str(record())])
    assert "idempotency~" in everything
    assert "my-secret-key" not in everything
    assert "4111-1111" not in everything


def test_no_frame_that_an_error_report_would_show_holds_the_key(site: Site) -> None:
    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        raise RuntimeError

    site.serve(idempotent(view))
    site.client.raise_request_exception = True
    with pytest.raises(RuntimeError) as caught:
        site.post("my-secret-key")
    frames = [frame for frame, _ in walk_tb(caught.value.__traceback__)]
    ours = [frame for frame in frames if "redlock_django" in frame.f_code.co_filename]
    assert any(frame.f_code.co_name == "_respond" for frame in ours)
    for frame in ours:
        assert "my-secret-key" not in repr(frame.f_locals)


def test_inside_a_test_case_nothing_is_different(
    site: Site, django_assert_num_queries: Callable[..., Any]
) -> None:
    site.serve(idempotent(lambda request, **_: JsonResponse({})))
    with transaction.atomic():
        connection.atomic_blocks[-1]._from_testcase = True  # type: ignore[attr-defined]
        assert [site.post().status_code for _ in range(2)] == [200, 200]
        assert record().state == "completed"


def test_a_view_with_upload_handlers_of_its_own_sets_them_above(site: Site) -> None:
    names: list[str] = []

    def uploads(view: Any) -> Any:
        @functools.wraps(view)
        def wrapped(request: HttpRequest, **kwargs: Any) -> Any:
            request.upload_handlers = [TemporaryFileUploadHandler(request)]
            return view(request, **kwargs)

        return csrf_exempt(wrapped)

    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        upload: Any = request.FILES["f"]
        names.append(type(upload).__name__)
        return HttpResponse(upload.read())

    site.serve(uploads(idempotent(view)))
    answers = [
        site.client.post(
            "/", {"f": SimpleUploadedFile("a", b"x")}, headers={"Idempotency-Key": KEY}
        )
        for _ in range(2)
    ]
    assert [answer.content for answer in answers] == [b"x", b"x"]
    assert names == ["TemporaryUploadedFile"]


# Responses at rest.


def card(request: HttpRequest, **_: Any) -> HttpResponse:
    """Answer with something that must not be stored."""
    make_order(request)
    return JsonResponse({"card": "4111"}, status=201, headers={"Location": "/1/", "ETag": '"1"'})


@pytest.mark.attack
def test_a_body_may_be_redacted(site: Site) -> None:
    def redact(request: HttpRequest, body: bytes) -> bytes:
        return body.replace(b"4111", b"****")

    site.serve(idempotent(redact=redact)(card))
    assert [site.post().json() for _ in range(2)] == [{"card": "4111"}, {"card": "****"}]
    site.serve(idempotent(redact=lambda request, body: "text")(card))
    assert site.post("other").status_code == 500
    assert orders() == 1


def test_the_response_of_one_view_is_not_replayed_for_another(site: Site, plain: None) -> None:
    """One view calls both, and has no transaction."""

    def second(request: HttpRequest, **_: Any) -> HttpResponse:
        return HttpResponse("second")

    def both(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        idempotent(make_order)(request, **kwargs)
        return idempotent(second)(request, **kwargs)

    site.client.raise_request_exception = True
    site.serve(both)
    for _ in range(2):
        with pytest.raises(InvalidRedlock, match=r"second is called after .*make_order in one"):
            site.post()
    site.serve(idempotent(both))
    assert [site.post("outermost").content for _ in range(2)] == [b"second"] * 2
    assert orders() == 2


def test_a_view_may_run_after_another_one_has_recorded_nothing(site: Site, plain: None) -> None:
    def missing(request: HttpRequest, **_: Any) -> HttpResponse:
        raise Http404

    def either(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        try:
            return idempotent(missing)(request, **kwargs)
        except Http404:
            return idempotent(make_order)(request, **kwargs)

    site.serve(either)
    assert [site.post().status_code for _ in range(2)] == [201, 201]
    assert orders() == 1


def statements(run: Callable[[], Any]) -> list[str]:
    """Return the statements about records that a request executes, by their first word."""
    with CaptureQueriesContext(connection) as captured:
        run()
    every = [query["sql"] for query in captured.captured_queries]
    return [sql.split()[0] for sql in every if "redlock_django_idempotencyrecord" in sql]


FORM = {"content_type": "application/x-www-form-urlencoded", "data": f"idempotency_key={KEY}"}


@pytest.mark.parametrize("sent", [{"key": KEY}, {"key": None, **FORM}], ids=["header", "form"])
def test_a_request_looks_once_for_its_record(site: Site, sent: dict[str, Any]) -> None:
    site.serve(idempotent(make_order))
    assert statements(lambda: site.post(**sent)) == ["SELECT", "INSERT", "UPDATE"]
    assert statements(lambda: site.post(**sent)) == ["SELECT"]
    assert orders() == 1


NAMES = ("replayed", "conflicted", "mismatched", "uncertain")


def counted() -> dict[str, int]:
    return {name: n for name in NAMES if (n := getattr(counters["default"], name))}


def test_each_kind_of_repetition_is_counted(site: Site) -> None:
    site.serve(idempotent(make_order))
    site.post("one")
    site.post(None)
    assert site.post("two words").status_code == 400
    assert counted() == {}
    for _ in range(2):
        site.post("one")
    assert counted() == {"replayed": 2}
    assert site.post("one", {"total": 2}).status_code == 422
    assert counted() == {"replayed": 2, "mismatched": 1}
    name = lock_name(record().key_hash)
    IdempotencyRecord.objects.update(state="running")
    with held_elsewhere(name):
        assert site.post("one").status_code == 409
    assert counted() == {"replayed": 2, "mismatched": 1, "conflicted": 1}
    for _ in range(2):  # the first retry marks it uncertain, the second finds it uncertain
        assert site.post("one").json()["code"] == "idempotency-outcome-uncertain"
    assert counted()["uncertain"] == 2


def squeezed(body: bytes, *, wbits: int = 31) -> bytes:
    """Return a compressed body: 31 is gzip, 15 is deflate."""
    compressor = zlib.compressobj(wbits=wbits)
    return compressor.compress(body) + compressor.flush()


PAGE = bytes(range(256)) * 40
TWO_MEMBERS = squeezed(PAGE[:5000]) + squeezed(PAGE[5000:])


@pytest.mark.parametrize("body", [squeezed(PAGE), TWO_MEMBERS, TWO_MEMBERS + b"\0" * 9])
@pytest.mark.parametrize("encoding", ["gzip", " GZip", "x-gzip"])
def test_a_response_of_an_upstream_is_replayed_uncompressed(
    site: Site, body: bytes, encoding: str
) -> None:
    site.serve(idempotent(answering(body, encoding)))
    first, again = site.post(), site.post()
    assert (first.content, first["Content-Encoding"]) == (body, encoding)
    assert (again.content, again.get("Content-Encoding")) == (PAGE, None)


def answering(body: bytes, encoding: str, status: int = 200) -> Any:
    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        return HttpResponse(body, status=status, headers={"Content-Encoding": encoding})

    return view


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (b'{"not": "gzip"}', "gzip"),
        (b"\x1f\x8b", "gzip"),
        (squeezed(PAGE)[:-9], "gzip"),
        (squeezed(PAGE)[:-4] + b"\0\0\0\0", "gzip"),
        (squeezed(PAGE) + b"more", "gzip"),
        (squeezed(PAGE)[:30] + b"\xff" * 30, "gzip"),
        (b"", "gzip"),
        (squeezed(PAGE, wbits=15), "deflate"),
        (squeezed(squeezed(PAGE)), "gzip, gzip"),
        (squeezed(PAGE), "br, gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\x0b\x02\x80", "br"),
        (PAGE, "identity"),
    ],
    ids=[
        *("no gzip", "a header", "truncated", "a wrong length", "trailing bytes", "broken"),
        *("empty", "deflate", "gzip twice", "br, gzip", "zstd", "br", "identity"),
    ],
)
def test_a_body_that_cannot_be_decompressed_is_replayed_unchanged(
    site: Site, body: bytes, encoding: str
) -> None:
    """A response that is marked gzip and is not gzip was a 500, and was rolled back."""
    site.serve(idempotent(answering(body, encoding)))
    answers = [site.post() for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert [answer.content for answer in answers] == [body] * 2
    assert [answer["Content-Encoding"] for answer in answers] == [encoding] * 2
    assert answers[1]["Idempotent-Replayed"] == "true"


def test_an_empty_answer_that_is_marked_gzip(site: Site) -> None:
    site.serve(idempotent(answering(b"", "gzip", 204)))
    assert [site.post().status_code for _ in range(2)] == [204, 204]


def test_unpacking_a_response_takes_no_more_memory_than_is_kept(site: Site) -> None:
    """200 MiB of zeros are 200 KiB of gzip; they were unpacked before they were measured."""
    bomb = squeezed(b"\0" * (50 << 20)) * 4
    site.serve(idempotent(answering(bomb, "gzip")))
    tracemalloc.start()
    try:
        assert site.post().status_code == 200
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 << 20
    assert site.post().json()["code"] == "idempotency-result-unavailable"


@pytest.mark.parametrize(("bytes_over", "state"), [(0, "completed"), (1, "tombstone")])
@pytest.mark.parametrize("split", [0, 500])
def test_the_unpacked_size_counts(site: Site, split: int, bytes_over: int, state: str) -> None:
    body = b"x" * (1000 + bytes_over)
    site.configure(MAX_RESPONSE_BYTES=1000)
    site.serve(idempotent(answering(squeezed(body[:split]) + squeezed(body[split:]), "gzip")))
    site.post()
    assert record().state == state


@pytest.mark.parametrize("encoding", ["br", "gzip"])
def test_a_body_that_cannot_be_read_is_not_given_to_redact(site: Site, encoding: str) -> None:
    """`redact` would find no secret in it, and it would be stored with all of them."""
    view = answering(b"\x0b\x02\x80secret\x03", encoding)
    site.serve(idempotent(redact=lambda request, body: body.replace(b"secret", b"***"))(view))
    assert b"secret" in site.post().content
    again = site.post()
    assert (again.content, again["Idempotency-Body"]) == (b"", "omitted")
    assert "Content-Encoding" not in again


@pytest.mark.parametrize(
    ("body", "encoding"), [(squeezed(b"a secret"), "gzip"), (b"a secret", "identity")]
)
def test_redact_gets_the_unpacked_body(site: Site, body: bytes, encoding: str) -> None:
    view = answering(body, encoding)
    site.serve(idempotent(redact=lambda request, body: body.replace(b"secret", b"***"))(view))
    assert site.post().content == body
    assert site.post().content == b"a ***"
