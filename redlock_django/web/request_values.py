"""The values of a request that name a resource: read as the view's framework reads them.

If a client made the lock read one value and the view another, the view would change data without a
lock. So a value is taken from the data that the framework has parsed for the view, and a request
that could be read in two ways is refused.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

from django.http import HttpRequest
from django.http.request import RawPostDataException

from redlock_django.exceptions import BadResource
from redlock_django.web.body import declared_length

SOURCES = ("header", "get", "post", "json")
"""Where `RequestValues.read` finds values."""

BODY_SOURCES = ("post", "json")
"""The sources that a framework parses from the body."""

LARGEST_JSON = 1_000_000
"""Bytes of the largest request body that is read as JSON."""


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
                header = self._request.headers.get(name)
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
            if not _is_rest(self._of_view):
                raise _Ambiguous("the body was read as a stream before") from None
        if _is_rest(self._of_view):
            return self._parsed_by_rest()
        if (parse_body := _ninja_parser(self._request)) is not None:
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


def _is_rest(request: object) -> bool:
    return hasattr(request, "negotiator")


def _ninja_parser(request: HttpRequest) -> Callable[[HttpRequest], object] | None:
    """Return the parser of the django-ninja API whose view the request was resolved to."""
    match = request.resolver_match  # None for a view that is called without a URL
    view: Any = inspect.unwrap(match.func) if match else None
    for cell in getattr(view, "__closure__", None) or ():
        for operation in _operations(cell):
            if (api := getattr(operation, "api", None)) is not None:
                parse: Callable[[HttpRequest], object] = api.parser.parse_body
                return parse
    return None


def _operations(cell: Any) -> Iterable[Any]:
    """Return the operations of a view of django-ninja, which a cell of its closure may have."""
    try:
        return getattr(cell.cell_contents, "operations", ())
    except ValueError:  # an empty cell
        return ()
