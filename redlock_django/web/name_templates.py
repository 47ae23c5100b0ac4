"""Templates such as "order:<int:pk>", which make a resource name from a request or from values."""

from __future__ import annotations

import hashlib
import inspect
import re
import unicodedata
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.urls.converters import IntConverter, StringConverter, get_converters

from redlock_django.exceptions import BadResource, InvalidRedlock
from redlock_django.locking.names import HASH_MARK, check_resource, encode
from redlock_django.web.request import SOURCES, acall_hook, request_value, user_of_async_view
from redlock_django.wire.servers.address import nearest

Computed = Callable[..., str | Awaitable[str]]
"""A callable `(request, **kwargs)` that returns a resource name; async views may use async ones."""

LONGEST_RENDERED = 200
"""Bytes of UTF-8. A longer name is cut and ends in a hash."""


class Template:
    """The rule that makes a resource name: a string with placeholders, or a callable.

    `<slug>` and `<int:pk>` are URL kwargs, unchanged or through a Django path converter. The other
    sources are `<user.pk>`, and `header` and `get`, as in `<int:get:order>` or, without a
    converter, `<header:X-Tenant>`. A converter makes one name of all spellings of a value, such as
    "7" and "07", or refuses them. Values are percent-encoded, so that different values never make
    the same name. A name over 200 bytes keeps its beginning and ends in a hash of the whole name.
    `names` are the URL kwargs that the template needs; `needs_request` is whether it also reads the
    request, and `needs_user` whether it reads the request's user. Raises InvalidRedlock for
    a malformed string.
    """

    def __init__(self, source: str | Computed) -> None:
        self.names: frozenset[str] = frozenset()
        self.needs_request = True
        self.needs_user = False
        self.is_async = inspect.iscoroutinefunction(source)
        self._computed: Computed | None = None
        if isinstance(source, str):
            self.text = source
            self._start, rest = parse(source)
            self._slots = [slot for slot, _ in rest]
            self._rest = [(slot, slot.key, literal) for slot, literal in rest]
            self._keys = {slot.key for slot in self._slots}
            self.names = frozenset(s.name for s in self._slots if s.source == "url")
            self.needs_request = any(s.source != "url" for s in self._slots)
            self.needs_user = any(s.source == "user" for s in self._slots)
        elif callable(source):
            self.text = getattr(source, "__qualname__", repr(source))
            self._slots = []
            self._computed = source
        else:
            raise InvalidRedlock(
                f"a resource template must be a string or a callable, got {type(source).__name__}"
            )

    def __repr__(self) -> str:
        return f"Template({self.text!r})"

    def render(self, request: HttpRequest, kwargs: Mapping[str, Any]) -> str:
        """Return the resource name for this request and its URL kwargs.

        `kwargs` contain `names`. Raises BadResource if the client's value is missing or invalid,
        and InvalidRedlock if the site cannot provide a value, because a middleware is missing.
        """
        if self._computed:
            return self._check(self._computed(request, **kwargs))
        user = getattr(request, "user", None) if self.needs_user else None
        return self._join(self._values(request, kwargs, user))

    async def arender(self, request: HttpRequest, kwargs: Mapping[str, Any]) -> str:
        """Return the resource name as `render` does, in an async view."""
        if self._computed:
            return self._check(await acall_hook(self._computed, request, **kwargs))
        user = await sync_to_async(user_of_async_view)(request) if self.needs_user else None
        return self._join(self._values(request, kwargs, user))

    def unconverted(self, converters: Mapping[str, object]) -> list[str]:
        """Return the placeholders that may have several spellings of one value, as written.

        `converters` are those of the URL. They are placeholders without a converter that read the
        request, or an id from a part of the URL that is any text.
        """
        return [slot.text for slot in self._slots if slot.has_spellings(converters)]

    def render_values(self, values: Mapping[str, Any]) -> str:
        """Return the resource name for plain values, by the names of the placeholders."""
        if self._computed:
            raise InvalidRedlock("resource() needs a string; call a callable template directly")
        if missing := self._keys - values.keys():
            raise InvalidRedlock(f"template {self.text!r} needs a value for {_quoted(missing)}")
        if unknown := values.keys() - self._keys:
            raise InvalidRedlock(f"template {self.text!r} has no placeholder {_quoted(unknown)}")
        return self._join(values)

    def _check(self, name: object) -> str:
        if inspect.iscoroutine(name):
            name.close()
        if not isinstance(name, str):
            raise InvalidRedlock(
                f"the resource callable {self.text!r} must return str, got {type(name).__name__}"
            )
        try:
            return check_resource(name)
        except BadResource as error:
            raise InvalidRedlock(f"the resource callable {self.text!r}: {error}") from None

    def _values(
        self, request: HttpRequest, kwargs: Mapping[str, Any], user: Any
    ) -> Mapping[str, object]:
        """Return the values of the placeholders in one request, by their keys."""
        if not self.needs_request:
            return kwargs  # these placeholders have their names as keys
        if self.needs_user and user is None and not hasattr(request, "user"):
            raise InvalidRedlock(
                f"template {self.text!r} needs AuthenticationMiddleware in MIDDLEWARE"
            )
        values = {**kwargs}
        for slot in self._slots:
            if slot.source == "user":
                values[slot.key] = getattr(user, "pk", None)
            elif slot.source != "url":
                values[slot.key] = request_value(request, slot.source, slot.name, slot.text)
        return values

    def _join(self, values: Mapping[str, object]) -> str:
        name = self._start
        for slot, key, literal in self._rest:
            name += encode(written(slot, values[key])) + literal
        if name and name.isascii() and len(name) <= LONGEST_RENDERED:
            return name  # as nearly always: its values are encoded, its literals were checked
        return check_resource(_shortened(name))


def template_of(source: str | Computed) -> Template:
    """Return the template that a string or a callable makes; a string is parsed once."""
    return _parsed(source) if isinstance(source, str) else Template(source)


@lru_cache(maxsize=1000)
def _parsed(text: str) -> Template:
    return Template(text)


def resource(template: str, **values: object) -> str:
    """Return the resource name that a view with this template locks.

    For tasks, the shell and tests: `resource("order:<int:pk>", pk=7)`. A value for another source
    is named without its converter: `**{"user.pk": 7, "get:order": 7}`. Raises InvalidRedlock for a
    malformed template and for a missing or unknown value, and BadResource for a value that is empty
    or does not match its converter.
    """
    return template_of(template).render_values(values)


def _quoted(names: Any) -> str:
    return ", ".join(repr(name) for name in sorted(names))


def _shortened(name: str) -> str:
    full = unicodedata.normalize("NFC", name).encode()
    if len(full) <= LONGEST_RENDERED:
        return name
    digest = hashlib.sha256(full).hexdigest()
    head = full[: LONGEST_RENDERED - len(digest) - 1].decode(errors="ignore")
    return re.sub("%[0-9A-F]?$", "", head) + HASH_MARK + digest


_ID = re.compile("(.*_)?(pk|id|uuid)")
_BRACES = re.compile(r"\{(\w+)\}")
_PLACEHOLDER = re.compile("<([^<>]*)>")


class Slot(NamedTuple):
    """One placeholder: its `text` as written, and the `name` that it reads from its `source`.

    `converter` is the name of a path converter, or "".
    """

    text: str
    source: str
    name: str
    converter: str = ""

    @property
    def key(self) -> str:
        """The name of its value in the arguments of `resource()`."""
        return f"{self.source}:{self.name}" if self.source in SOURCES else self.name

    def has_spellings(self, converters: Mapping[str, object]) -> bool:
        """Return whether one value may have several spellings; `converters` are the URL's."""
        if self.converter or self.source == "user":
            return False
        if self.source != "url":
            return True
        converter = converters.get(self.name)
        is_text = converter is None or isinstance(converter, StringConverter)
        return is_text and _ID.fullmatch(self.name) is not None


def parse(text: str) -> tuple[str, list[tuple[Slot, str]]]:
    """Return the text before the first placeholder, and each placeholder with the text after it.

    Raises InvalidRedlock for a malformed template.
    """
    pieces = _PLACEHOLDER.split(text)
    literals, slots = pieces[::2], [_slot(text, inner) for inner in pieces[1::2]]
    if not text:
        raise InvalidRedlock("a resource template must not be empty")
    for literal in literals:
        if braces := _BRACES.search(literal):
            name = braces[1]
            raise _malformed(
                text, f"write <{name}> instead of {{{name}}}, with its type, such as <int:{name}>"
            )
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
    return literals[0], list(zip(slots, literals[1:], strict=True))


def _malformed(text: str, fault: str) -> InvalidRedlock:
    return InvalidRedlock(f"malformed resource template {text!r}: {fault}")


def _slot(text: str, inner: str) -> Slot:
    if inner == "user.pk":
        return Slot(inner, "user", inner)
    head, colon, rest = inner.partition(":")
    if not colon and not inner.isidentifier():
        raise _malformed(text, f"<{inner}> is neither a URL kwarg nor <user.pk>")
    converter = ""
    if colon and head not in SOURCES:
        known = (*get_converters(), *SOURCES)
        if head not in known:
            what = f"unknown converter or source {head!r}{nearest(head, known)}"
            raise _malformed(text, f"<{inner}>: {what}")
        converter, (head, colon, rest) = head, rest.partition(":")
    if not colon:
        if not head.isidentifier():
            raise _malformed(text, f"<{inner}> does not name a URL kwarg")
        return Slot(inner, "url", head, converter)
    if head not in SOURCES:
        raise _malformed(text, f"<{inner}>: unknown source {head!r}{nearest(head, SOURCES)}")
    if not rest:
        raise _malformed(text, f"<{inner}> names nothing to read")
    return Slot(inner, head, rest, converter)


def written(slot: Slot, value: object) -> str:
    """Return one value as a string; only types with exactly one spelling, no implicit str().

    Raises BadResource for a value that is missing or does not match its converter, InvalidRedlock
    for a type without a unique spelling.
    """
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


_compiled = cache(re.compile)  # one lookup; re.fullmatch() takes three times as long


def _converted(slot: Slot, value: object) -> str:
    """Return a value in the spelling of its converter: "07" and 7 are both "7"."""
    converter = get_converters()[slot.converter]
    if type(value) is int and 0 <= value < 2**63 and type(converter) is IntConverter:
        return str(value)  # as nearly always, and in a third of the time
    try:
        text = value if isinstance(value, str) else converter.to_url(value)
    except (ValueError, TypeError, AttributeError):
        text = None  # a type that the converter does not expect
    try:
        # A converter of strings returns any value as it is.
        if isinstance(text, str) and _compiled(converter.regex).fullmatch(text):
            return str(converter.to_url(converter.to_python(text)))
    except ValueError:
        pass
    raise BadResource(f"<{slot.text}>: the value is not a valid {slot.converter!r}")
