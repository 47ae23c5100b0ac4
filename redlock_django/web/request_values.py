"""The values, the body and the user of a request, for a lock: read as its view reads them.

If a client made the lock read one value and the view another, the view would change data without a
lock. So a value is taken from the data that the framework has parsed for the view, and a request
that could be read in two ways is refused.

`request.user` is the authority on the user, because everything that authenticates a request sets
it: Django's `login()` and `alogin()`, middleware for tokens or impersonation, REST framework.
Django's `request.auser()` reads the session and does not notice that `request.user` was replaced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest
from django.http.request import HttpHeaders, RawPostDataException

from redlock_django.exceptions import BadResource, IncompleteBody, InvalidRedlock
from redlock_django.web.view_kinds import is_rest_request, ninja_parser

SOURCES = ("header", "get", "post", "json")
"""Where `RequestValues.read` finds values."""

BODY_SOURCES = ("post", "json")
"""The sources that a framework parses from the body."""

LARGEST_JSON = 1_000_000
"""Bytes of the largest request body that is read as JSON."""


def names_value(source: str, name: str) -> bool:
    """Return whether a source of a request may have a value of this name."""
    return source in SOURCES and bool(name) and (source != "json" or all(name.split(".")))


def header_of(request: HttpRequest, name: str) -> str | None:
    """Return one header of a request, or None; `request.headers` copies all of them first."""
    value: str | None = request.META.get(HttpHeaders.to_wsgi_name(name))
    return value


class RequestValues:
    """The values of one request: Django's, or REST framework's that wraps it.

    The same rules hold for all views, so that it does not matter how a view reads its request:

    - A header, a parameter of the query and a field of a form have one value.
    - JSON is one object in UTF-8 with the media type `application/json` or `...+json`, in which no
      name appears twice in one object.
    - REST framework must have parsed a form or JSON with a parser for that; the values that it gave
      the view are read. So are those that the parser of a django-ninja API returns.
    """

    def __init__(self, request: Any) -> None:
        self._of_view = request
        self._request: HttpRequest = getattr(request, "_request", request)

    def read(self, source: str, name: str, label: str = "") -> str | int | None:
        """Return one value, None if it is missing; `name` is a dotted path into JSON.

        `label` names the value in errors, instead of the source and the name. Raises BadResource
        for a value that is neither a string nor a whole number, and for a request whose view might
        read another value.
        """
        try:
            return _string_or_number(self._value(source, name))
        except _Ambiguous as error:
            raise BadResource(f"<{label or f'{source}:{name}'}>: {error}") from None

    def _value(self, source: str, name: str) -> object:
        match source:
            case "header":
                header = header_of(self._request, name)
                if "," in (header or ""):  # as servers join two header lines
                    raise _Ambiguous("the header has a comma, which separates several values")
                return header
            case "get":
                return _only_value(self._request.GET, name)
            case "post":
                # REST framework's POST is what its parser returned, if that was a form.
                if name in self._of_view.FILES:
                    raise _Ambiguous("a file has the name of the field")
                return _only_value(self._of_view.POST, name)
        value = self._json
        for step in name.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        return value

    @cached_property
    def _json(self) -> object:
        """The JSON object of the body, as the view gets it."""
        _check_is_json(self._request)
        document: object = None
        try:
            document = _unambiguous_object(self._request)
        except RawPostDataException:
            # Releases of REST framework before 3.18 parse a stream and do not keep it.
            if not is_rest_request(self._of_view):
                raise _Ambiguous("the body was read as a stream before") from None
        if is_rest_request(self._of_view):
            return self._parsed_by_rest()
        if (parse_body := ninja_parser(self._request)) is not None:
            try:
                return parse_body(self._request)
            except Exception:  # noqa: BLE001 - django-ninja answers any error with 400, too
                raise _Ambiguous("the parser of the API does not read the body") from None
        return document

    def _parsed_by_rest(self) -> object:
        request = self._of_view
        parser = request.negotiator.select_parser(request, request.parsers)
        # Without a parser, `data` raises the error that REST framework answers with 415.
        if parser is not None and not _is_json(parser.media_type):
            raise _Ambiguous(f"{type(parser).__name__} parses the body, which is not for JSON")
        return request.data


class _Ambiguous(Exception):
    """A request that may be read in another way, or not at all."""


def _string_or_number(value: object) -> str | int | None:
    if value is None or (isinstance(value, str | int) and not isinstance(value, bool)):
        return value
    raise _Ambiguous("the value must be a string or a whole number")


def _only_value(values: Any, name: str) -> object:
    """Return the value of a name; views differ in which of several they take."""
    if not hasattr(values, "getlist"):  # a parser of the site
        return values.get(name) if isinstance(values, Mapping) else None
    found = values.getlist(name)
    if len(found) > 1:
        raise _Ambiguous(f"it has {len(found)} values")
    return found[0] if found else None


def _check_is_json(request: HttpRequest) -> None:
    """Raise _Ambiguous unless the headers say that the body is JSON in UTF-8, not compressed."""
    if not _is_json(request.content_type):
        raise _Ambiguous("the Content-Type of the request is not application/json")
    charset = (request.content_params or {}).get("charset", "utf-8")
    if charset.lower() not in ("utf-8", "utf8"):
        raise _Ambiguous("the charset of the request is not utf-8")
    if request.headers.get("Content-Encoding", "identity").lower() not in ("", "identity"):
        raise _Ambiguous("the body has a Content-Encoding, which Django does not decode")


def _is_json(media_type: str | None) -> bool:
    name = (media_type or "").partition(";")[0].strip().lower()
    return name == "application/json" or name.endswith("+json")


def _unambiguous_object(request: HttpRequest) -> dict[str, object]:
    """Return the JSON object of a body that every parser reads alike."""
    body = b"" if declared_length(request) > LARGEST_JSON else request.body
    if max(declared_length(request), len(body)) > LARGEST_JSON:
        raise _Ambiguous("the request body is too large")
    try:
        # Decoded here: json.loads() would accept bytes in UTF-16 and UTF-32, or with a BOM.
        document = json.loads(body.decode(), object_pairs_hook=_members, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise _Ambiguous("the request body is not valid JSON") from None
    if not isinstance(document, dict):
        raise _Ambiguous("the request body is not a JSON object")
    return document


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _Ambiguous("a name appears twice in an object of the JSON body")
    return members


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")  # Python accepts NaN and Infinity


_DJANGO = "django.contrib.auth.middleware"


def request_user(request: Any) -> Any:
    """Return `request.user`, or None if nothing has set it."""
    return getattr(request, "user", None)


async def arequest_user(request: Any) -> Any:
    """Return the user of an async view's request, or None if nothing has set it.

    Raises InvalidRedlock if a middleware has replaced `request.auser` and not `request.user`.
    """
    # In a thread, because the first use of request.user may query the database.
    user = await sync_to_async(_loaded_user)(request)
    auser = getattr(request, "auser", None)
    if auser is None or _reads_session(auser):
        return user
    replaced = await auser()
    if user is not None and _identity(user) != _identity(replaced):
        raise InvalidRedlock(
            "request.user and request.auser() are different users. A middleware that sets "
            "request.auser must set request.user to the same user"
        )
    return replaced


def _loaded_user(request: Any) -> Any:
    user = request_user(request)
    getattr(user, "is_authenticated", None)  # loads a lazy user
    return user


def _reads_session(auser: Any) -> bool:
    """Return whether `request.auser` is the one that AuthenticationMiddleware has set."""
    return getattr(getattr(auser, "func", None), "__module__", "") == _DJANGO


def _identity(user: Any) -> tuple[object, ...]:
    # A lazy user reports the class of the user that it loads.
    return user.__class__, getattr(user, "is_authenticated", False), getattr(user, "pk", None)


LARGEST_READ = 2_621_440
"""Bytes of the largest body to read if DATA_UPLOAD_MAX_MEMORY_SIZE is None: Django's default."""


def declared_length(request: Any) -> int:
    """Return the Content-Length of a request in bytes, 0 if it has none."""
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0  # as Django reads it


def read_body(request: Any) -> None:
    """Read a small body before a lock is acquired, so that a slow client does not hold the lock.

    A body over DATA_UPLOAD_MAX_MEMORY_SIZE (an upload of files) stays unread, because the view may
    stream it. Under ASGI the whole body has arrived before Django handles the request. Raises
    IncompleteBody if the connection was closed in the middle of the body.
    """
    if not request.META.get("CONTENT_LENGTH"):
        return  # as nearly all that only read
    request = getattr(request, "_request", request)
    declared = declared_length(request)
    if declared <= 0 or not isinstance(request, WSGIRequest) or vars(request).get("_read_started"):
        return
    if declared <= (settings.DATA_UPLOAD_MAX_MEMORY_SIZE or LARGEST_READ):
        request.body  # noqa: B018 - Django keeps it for the view, as POST or a stream too
        check_body_is_complete(request)


def check_body_is_complete(request: Any) -> None:
    """Raise IncompleteBody if a body that was read is shorter than its Content-Length.

    A WSGI server does not report that the client closed the connection in the middle of the body:
    Django sees the end of a shorter one. Call this after the body or the form was read; it reads
    nothing itself. Middleware that replaces a body by a shorter one has to set CONTENT_LENGTH.
    """
    request = getattr(request, "_request", request)
    read: int | None
    if hasattr(request, "_body"):
        read = len(request._body)
    else:
        # A form with files is parsed from Django's stream, whose position this is. Under ASGI there
        # is none: Django does not handle a request before its whole body has arrived.
        read = getattr(getattr(request, "_stream", None), "_pos", None)
    if read is not None and read < declared_length(request):
        raise IncompleteBody("the connection was closed before the whole body had arrived")
