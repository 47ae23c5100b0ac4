"""Responses that the view has compressed, or passes on from a server that has."""

from __future__ import annotations

import tracemalloc
import zlib
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse

from redlock_django import idempotent
from tests.idempotency.conftest import Site, record

pytestmark = pytest.mark.django_db(transaction=True)


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
