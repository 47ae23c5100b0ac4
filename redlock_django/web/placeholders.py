"""The placeholders of a template, such as `<int:pk>` or `<uuid:json:a.b>`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple
from uuid import UUID

from django.urls.converters import StringConverter, get_converters

from redlock_django.exceptions import BadResource, InvalidRedlock
from redlock_django.locking.names import HASH_MARK, check_resource
from redlock_django.web.request_values import SOURCES
from redlock_django.wire.servers.address import nearest

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
    if not colon:
        if not inner.isidentifier():
            raise _malformed(text, f"<{inner}> is neither a URL kwarg nor <user.pk>")
        return Slot(inner, "url", inner)
    if head in SOURCES:
        return _request_slot(text, inner, head, rest)
    known = (*get_converters(), *SOURCES)
    if head not in known:
        raise _malformed(
            text, f"<{inner}>: unknown converter or source {head!r}{nearest(head, known)}"
        )
    source, colon, name = rest.partition(":")
    if colon:
        if source not in SOURCES:
            raise _malformed(
                text, f"<{inner}>: unknown source {source!r}{nearest(source, SOURCES)}"
            )
        return _request_slot(text, inner, source, name, head)
    if not rest.isidentifier():
        raise _malformed(text, f"<{inner}> does not name a URL kwarg")
    return Slot(inner, "url", rest, head)


def _request_slot(text: str, inner: str, source: str, name: str, converter: str = "") -> Slot:
    if not name or (source == "json" and not all(name.split("."))):
        raise _malformed(text, f"<{inner}> names nothing to read")
    return Slot(inner, source, name, converter)


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
    try:
        text = value if isinstance(value, str) else converter.to_url(value)
    except (ValueError, TypeError, AttributeError):
        text = None  # a type that the converter does not expect, such as a number of a JSON body
    try:
        # A converter of strings returns any value as it is.
        if isinstance(text, str) and _compiled(converter.regex).fullmatch(text):
            return str(converter.to_url(converter.to_python(text)))
    except ValueError:
        pass
    raise BadResource(f"<{slot.text}>: the value is not a valid {slot.converter!r}")
