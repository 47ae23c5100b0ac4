"""Templates such as "order:<int:pk>", which make a resource name from a request or from values."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import unicodedata
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.http import HttpRequest
from django.http.request import RawPostDataException
from django.urls.converters import get_converters

from redlock_django.exceptions import BadResource, InvalidRedlock
from redlock_django.locking.names import HASH_MARK, check_resource, encode
from redlock_django.web.request_user import arequest_user, request_user
from redlock_django.wire.address import nearest

Computed = Callable[..., str | Awaitable[str]]
"""A callable `(request, **kwargs)` that returns a resource name; async views may use async ones."""

LONGEST_RENDERED = 200
"""Bytes of UTF-8. A rendered name that is longer is cut and ends in a hash."""

LARGEST_JSON = 1_000_000
"""Bytes of the largest request body that `<json:...>` reads."""

_SOURCES = ("header", "get", "post", "json")
_PLACEHOLDER = re.compile("<([^<>]*)>")


class _Slot(NamedTuple):
    """One placeholder: its `text` as written, and the `name` that it reads from its `source`."""

    text: str
    source: str
    name: str
    converter: str = ""

    @property
    def key(self) -> str:
        """The name of its value in the arguments of `resource()`."""
        return self.name if self.source == "url" else self.text


class Template:
    """The rule that makes a resource name: a string with placeholders, or a callable.

    `<pk>` and `<int:pk>` are URL kwargs, unchanged or through a Django path converter. The other
    sources are `<user.pk>`, `<header:X-Tenant>`, `<get:q>`, `<post:f>` and `<json:a.b>`. Values
    are percent-encoded, so that different values never make the same name. A name over 200 bytes
    keeps its beginning and ends in a hash of the whole name. `names` are the URL kwargs that the
    template needs; `needs_request` is whether it also reads the request, and `needs_user` whether
    it reads the request's user. Raises InvalidRedlock for a malformed string.
    """

    def __init__(self, source: str | Computed) -> None:
        self.names: frozenset[str] = frozenset()
        self.needs_request = True
        self.needs_user = False
        self.is_async = inspect.iscoroutinefunction(source)
        self._computed: Computed | None = None
        if isinstance(source, str):
            self.text = source
            self._literals, self._slots = _parse(source)
            self.names = frozenset(s.name for s in self._slots if s.source == "url")
            self.needs_request = any(s.source != "url" for s in self._slots)
            self.needs_user = any(s.source == "user" for s in self._slots)
        elif callable(source):
            self.text = getattr(source, "__qualname__", repr(source))
            self._computed = source
        else:
            raise InvalidRedlock(
                f"a resource template must be a string or a callable, got {type(source).__name__}"
            )

    def __repr__(self) -> str:
        return f"Template({self.text!r})"

    def render(self, request: HttpRequest, kwargs: Mapping[str, Any]) -> str:
        """Return the resource name for this request and its URL kwargs.

        Raises BadResource if the client's value is missing or invalid, and InvalidRedlock if the
        site cannot provide a value, because a URL kwarg or a middleware is missing.
        """
        if self._computed:
            return self._check(self._computed(request, **kwargs))
        user = self._known(request, request_user(request)) if self.needs_user else None
        return self._join([_read(slot, request, kwargs, user) for slot in self._slots])

    async def arender(self, request: HttpRequest, kwargs: Mapping[str, Any]) -> str:
        """Return the resource name as `render` does, in an async view."""
        if self._computed:
            result = self._computed(request, **kwargs)
            return self._check(await result if inspect.isawaitable(result) else result)
        user = self._known(request, await arequest_user(request)) if self.needs_user else None
        return self._join([_read(slot, request, kwargs, user) for slot in self._slots])

    def render_values(self, values: Mapping[str, Any]) -> str:
        """Return the resource name for plain values, by the names of the placeholders."""
        if self._computed:
            raise InvalidRedlock("resource() needs a string; call a callable template directly")
        wanted = [slot.key for slot in self._slots]
        if missing := set(wanted) - values.keys():
            raise InvalidRedlock(f"template {self.text!r} needs a value for {_quoted(missing)}")
        if unknown := values.keys() - set(wanted):
            raise InvalidRedlock(f"template {self.text!r} has no placeholder {_quoted(unknown)}")
        return self._join([values[key] for key in wanted])

    def _known(self, request: HttpRequest, user: Any) -> Any:
        if user is None and not hasattr(request, "user"):
            raise InvalidRedlock(
                f"template {self.text!r} needs AuthenticationMiddleware in MIDDLEWARE"
            )
        return user

    def _check(self, name: object) -> str:
        if inspect.iscoroutine(name):
            name.close()
        if not isinstance(name, str):
            raise InvalidRedlock(
                f"the resource callable {self.text!r} must return str, got {type(name).__name__}"
            )
        return check_resource(name)

    def _join(self, values: Sequence[object]) -> str:
        name = self._literals[0]
        for slot, value, literal in zip(self._slots, values, self._literals[1:], strict=True):
            name += encode(_written(slot, value)) + literal
        return check_resource(_shortened(name))


def resource(template: str, **values: object) -> str:
    """Return the resource name that a view with this template locks.

    For tasks, the shell and tests: `resource("order:<pk>", pk=7)`. A value for another source is
    named by the text of the placeholder: `**{"user.pk": 7}`. Raises InvalidRedlock for a malformed
    template and for a missing or unknown value, and BadResource for a value that is empty or does
    not match its converter.
    """
    return Template(template).render_values(values)


def _quoted(names: Any) -> str:
    return ", ".join(repr(name) for name in sorted(names))


def _parse(text: str) -> tuple[list[str], list[_Slot]]:
    pieces = _PLACEHOLDER.split(text)
    literals, slots = pieces[::2], [_slot(text, inner) for inner in pieces[1::2]]
    if not text:
        raise InvalidRedlock("a resource template must not be empty")
    for literal in literals:
        if HASH_MARK in literal:
            raise _malformed(text, f"{HASH_MARK!r} is reserved for hashed names")
        if literal:
            try:
                check_resource(literal)
            except BadResource as error:
                raise _malformed(text, str(error).partition(";")[0]) from None
    # The encoder never outputs ":", so only ":" separates two values without ambiguity.
    if any(":" not in literal for literal in literals[1:-1]):
        raise _malformed(text, "between two placeholders there must be a ':'")
    if len({slot.key for slot in slots}) < len(slots):
        raise _malformed(text, "a placeholder appears twice")
    return literals, slots


def _malformed(text: str, fault: str) -> InvalidRedlock:
    return InvalidRedlock(f"malformed resource template {text!r}: {fault}")


def _slot(text: str, inner: str) -> _Slot:
    if inner == "user.pk":
        return _Slot(inner, "user", inner)
    source, colon, name = inner.rpartition(":")
    if not colon:
        if not inner.isidentifier():
            raise _malformed(text, f"<{inner}> is neither a URL kwarg nor <user.pk>")
        return _Slot(inner, "url", inner)
    source, _, name = inner.partition(":")
    if source in _SOURCES:
        if not name or (source == "json" and not all(name.split("."))):
            raise _malformed(text, f"<{inner}> names nothing to read")
        return _Slot(inner, source, name)
    known = (*get_converters(), *_SOURCES)
    if source not in known:
        raise _malformed(
            text, f"<{inner}>: unknown converter or source {source!r}{nearest(source, known)}"
        )
    if not name.isidentifier():
        raise _malformed(text, f"<{inner}> does not name a URL kwarg")
    return _Slot(inner, "url", name, source)


def _read(slot: _Slot, request: HttpRequest, kwargs: Mapping[str, Any], user: Any) -> object:
    match slot.source:
        case "url":
            if slot.name not in kwargs:
                given = _quoted(kwargs) or "none"
                raise InvalidRedlock(f"<{slot.text}> needs a URL kwarg; the URL provides: {given}")
            return kwargs[slot.name]
        case "user":
            return getattr(user, "pk", None)
        case "header":
            return request.headers.get(slot.name)
        case "get":
            return request.GET.get(slot.name)
        case "post":
            return request.POST.get(slot.name)
    return _from_json(slot, request)


def _from_json(slot: _Slot, request: HttpRequest) -> object:
    """Return a value of the JSON body.

    Only this source reads the body: an upload view must find its stream unread.
    """
    try:
        declared = int(request.META.get("CONTENT_LENGTH") or 0)
        body = b"" if declared > LARGEST_JSON else request.body
        if max(declared, len(body)) > LARGEST_JSON:
            raise BadResource(f"<{slot.text}>: the request body is too large")
        value: object = json.loads(body)
    except BadResource:
        raise
    except (ValueError, RecursionError, RawPostDataException):
        raise BadResource(f"<{slot.text}>: the request body is not valid JSON") from None
    for step in slot.name.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    if value is None or (isinstance(value, str | int) and not isinstance(value, bool)):
        return value
    raise BadResource(f"<{slot.text}>: the JSON value must be a string or a whole number")


def _written(slot: _Slot, value: object) -> str:
    """Return one value as a string; only types with exactly one spelling, no implicit str()."""
    if value is None or value == "":
        raise BadResource(f"<{slot.text}>: the value is missing or empty")
    if slot.converter:
        return _converted(slot, value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__repr__(value)
    if isinstance(value, UUID):
        return str(value)
    raise InvalidRedlock(
        f"<{slot.text}> is of type {type(value).__name__}, which has no unique spelling. "
        "Use a path converter (<int:...>) or a callable"
    )


def _converted(slot: _Slot, value: object) -> str:
    """Return a value in the spelling of its converter: "07" and 7 are both "7"."""
    converter = get_converters()[slot.converter]
    try:
        text = value if isinstance(value, str) else converter.to_url(value)
        if re.fullmatch(converter.regex, text):
            return str(converter.to_url(converter.to_python(text)))
    except ValueError:
        pass
    raise BadResource(f"<{slot.text}>: the value is not a valid {slot.converter!r}")


def _shortened(name: str) -> str:
    full = unicodedata.normalize("NFC", name).encode()
    if len(full) <= LONGEST_RENDERED:
        return name
    digest = hashlib.sha256(full).hexdigest()
    head = full[: LONGEST_RENDERED - len(digest) - 1].decode(errors="ignore")
    return re.sub("%[0-9A-F]?$", "", head) + HASH_MARK + digest
