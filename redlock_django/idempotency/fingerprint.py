"""The fingerprint of a request: a hash of its method, path, query, Content-Type and body."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

from django.core.exceptions import BadRequest, RequestDataTooBig
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.http import HttpRequest, QueryDict
from django.http.multipartparser import MultiPartParser
from django.http.request import RawPostDataException
from django.utils.datastructures import MultiValueDict

from redlock_django.exceptions import IdempotencyRefused, InvalidRedlock
from redlock_django.idempotency.refusals import BODY_TOO_LARGE
from redlock_django.web.request import check_body_is_complete

FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
"""Media types whose bodies are compared part by part, because boundaries differ in each retry."""

_CSRF_FIELD = "csrfmiddlewaretoken"  # its value differs in each request


def request_fingerprint(
    request: HttpRequest,
    *,
    key_field: str,
    path_only: bool = False,
) -> bytes:
    """Return the SHA-256 hash of a request; with `path_only`, of its method and path.

    The form field `key_field` is left out. Raises IdempotencyRefused if the body is too large,
    IncompleteBody, and InvalidRedlock if the body was read before.
    """
    digest = hashlib.sha256()
    for part in _method_and_path(request) if path_only else _parts(request, key_field):
        # Each part is preceded by its length, so that two divisions of the same bytes differ.
        digest.update(len(part).to_bytes(8, "big") + part)
    check_body_is_complete(request)
    return digest.digest()


def _method_and_path(request: HttpRequest) -> Iterator[bytes]:
    yield (request.method or "").encode()
    yield request.path.encode("utf-8", "surrogateescape")


def _parts(request: HttpRequest, key_field: str) -> Iterator[bytes]:
    media_type = request.content_type or ""
    yield from _method_and_path(request)
    yield request.META.get("QUERY_STRING", "").encode("utf-8", "surrogateescape")
    yield (media_type + _parameters(request)).encode("utf-8", "surrogateescape")
    if media_type in FORMS:
        yield from _form(request, {key_field, _CSRF_FIELD})
    else:
        yield read_whole_body(request)


def _parameters(request: HttpRequest) -> str:
    """Return the parameters of the media type that tell how to read the body, as JSON, or ""."""
    parameters = dict(request.content_params or {})
    parameters.pop("boundary", None)
    if parameters.get("charset", "").lower() in ("utf-8", "utf8"):
        del parameters["charset"]  # the default
    return json.dumps(parameters, sort_keys=True) if parameters else ""


def read_whole_body(request: HttpRequest) -> bytes:
    """Return the body.

    Raises IdempotencyRefused if it is too large, and InvalidRedlock if it was read before.
    """
    try:
        return request.body
    except RequestDataTooBig:
        raise IdempotencyRefused(BODY_TOO_LARGE) from None
    except RawPostDataException:
        raise InvalidRedlock(
            f"{request.path}: the body was read with request.read() before @idempotent could read "
            "it. Read request.body there instead"
        ) from None


def read_for_view(request: HttpRequest) -> None:
    """Read the body or the posted form, so that the view can read it again.

    Raises IdempotencyRefused if it is too large, BadRequest for a form that cannot be read, and
    InvalidRedlock if the body was read before.
    """
    if has_posted_form(request):
        posted_form(request)
    else:
        read_whole_body(request)


def _form(request: HttpRequest, without: set[str]) -> Iterator[bytes]:
    fields, files = _fields(request)
    for name in sorted(fields.keys() - without):
        for value in fields.getlist(name):
            yield from (b"field", _bytes(name), _bytes(value))
    for name in sorted(files.keys()):
        for upload in files.getlist(name):
            about = (upload.name, upload.content_type)
            yield from (b"file", _bytes(name), *(_bytes(text or "") for text in about))
            content = hashlib.sha256()
            for chunk in upload.chunks():
                content.update(chunk)
            yield content.digest()
            if has_posted_form(request):
                upload.seek(0)
            else:
                upload.close()


def _fields(request: HttpRequest) -> tuple[Any, Any]:
    if has_posted_form(request):
        # Parsed once, and used by the view too, so that uploads need not fit into memory.
        return posted_form(request), request.FILES
    # Django parses only forms of POST, and the view must still be able to read the body.
    body = read_whole_body(request)
    with _form_errors(request):
        if request.content_type == FORMS[0]:
            return QueryDict(body, encoding=request.encoding), MultiValueDict()
        handlers = [TemporaryFileUploadHandler(request)]
        return MultiPartParser(request.META, BytesIO(body), handlers, request.encoding).parse()


def has_posted_form(request: HttpRequest) -> bool:
    """Return whether Django parses the body as a form.

    It does so for a POST, also if a middleware changes the method after that (`_method=PATCH`).
    """
    # Django writes an empty form for other methods.
    was_parsed = getattr(request, "_post", None) or getattr(request, "_files", None)
    return request.content_type in FORMS and (request.method == "POST" or bool(was_parsed))


def posted_form(request: HttpRequest) -> QueryDict:
    """Return the posted form.

    Raises IdempotencyRefused if it is too large, and BadRequest if it cannot be read.
    """
    with _form_errors(request):
        return request.POST


@contextmanager
def _form_errors(request: HttpRequest) -> Iterator[None]:
    try:
        _check_charset(request)
        yield
    except RequestDataTooBig:
        raise IdempotencyRefused(BODY_TOO_LARGE) from None
    except UnicodeError:
        raise BadRequest("The form is not in the charset of its Content-Type.") from None


def _check_charset(request: HttpRequest) -> None:
    """Raise UnicodeError for a codec of Python that is not of text, such as "hex"."""
    # Caught here only, because a KeyError of an upload handler is a LookupError, too.
    try:
        "a".encode(request.encoding or "utf-8")
    except LookupError:
        raise UnicodeError from None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
