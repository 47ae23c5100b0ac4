"""The characters of resource names: `check_resource` refuses names, `encode` writes values.

Both use the same rules: a character that `encode` encodes is a character that `check_resource`
refuses, except for the separators ":" and "~".
"""

from __future__ import annotations

import re
import unicodedata

from redlock_django.engine.inspection.printable import printable as printable
from redlock_django.engine.protocol.slots import MOST_SLOTS, name_of, slot_of, slot_resource
from redlock_django.exceptions import BadResource

MAX_BYTES = 512
"""The maximal length of a resource name, in bytes of UTF-8."""

HASH_MARK = "~"
"""Precedes the hash that replaces the end of a long name; no encoded value contains it."""

TICKET = "redlock-ticket*"
"""The beginning of every ticket, with a reserved character: a ticket is not a name."""

# Separators: allowed in a name, encoded in a value.
_SEPARATORS = frozenset(":" + HASH_MARK)
# Globs make SCAN MATCH ambiguous, braces are Redis Cluster's hash tags, <> mark placeholders.
_RESERVED = frozenset('*?[]^\\<>{}"')
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_ESCAPE = re.compile("%(?![0-9A-F]{2})")


def _plain(length: str, *, without: frozenset[str]) -> re.Pattern[str]:
    # Nearly every name has only such characters, which no rule below refuses: one look suffices.
    characters = "".join(char for char in map(chr, range(33, 127)) if char not in without)
    return re.compile(f"[{re.escape(characters)}]{length}")


is_plain = _plain(f"{{1,{MAX_BYTES}}}", without=_RESERVED | {"%"}).fullmatch
"""Return a match for a name that is certainly valid, as it is."""

_is_plain_value = _plain("*", without=_RESERVED | {"%"} | _SEPARATORS).fullmatch


def _fault(character: str) -> str | None:
    """Return why a character is not allowed in a name, or None if it is allowed."""
    if character in _BIDI:
        return "bidi control character"
    match unicodedata.category(character):
        case "Cc":
            return "control character"
        case "Cf":
            return "invisible character"
        case "Cs":
            return "lone surrogate"
        case "Zs" | "Zl" | "Zp":
            return "space"
    return "reserved character" if character in _RESERVED else None


def check_resource(name: object) -> str:
    """Return `name` in Unicode form NFC; raise BadResource if it is not a valid resource name.

    A name is a str of 1 to 512 bytes of UTF-8. It has no spaces, control, bidi or other invisible
    characters, lone surrogates, nor any of `* ? [ ] ^ \\ < > { } "`, and `%` only before two hex
    digits (0-9 A-F). The error names the fault and its position.
    """
    if type(name) is str and is_plain(name):
        return name
    if not isinstance(name, str):
        # No implicit str(): every caller that passes None by mistake would share one lock.
        raise BadResource(f"a resource name must be str, got {type(name).__name__}")
    if not name:
        raise BadResource("a resource name must not be empty")
    if name.startswith(TICKET):
        raise BadResource(
            "this is the ticket of a lock that was handed on, not a name. Write: "
            "with resume_lock(ticket) as held: ..."
        )
    name = unicodedata.normalize("NFC", str.__str__(name))
    for position, character in enumerate(name):
        if fault := _fault(character):
            raise _refusal(f"{fault} U+{ord(character):04X} at position {position}", name)
    if bare := _ESCAPE.search(name):
        raise _refusal(f"'%' without two hex digits (0-9 A-F) at position {bare.start()}", name)
    size = len(name.encode())
    if size > MAX_BYTES:
        raise BadResource(
            f"the resource name has {size} bytes, at most {MAX_BYTES} are allowed; "
            "resource() shortens a long name with a hash",
            resource=printable(name),
        )
    return name


def check_slot(resource: object) -> str:
    """Check as `check_resource` does; the resource may be a slot of a name, such as `export[1]`."""
    if isinstance(resource, str) and 0 < (slot := slot_of(resource)) < MOST_SLOTS:
        return slot_resource(check_resource(name_of(resource)), slot)
    return check_resource(resource)


def is_resource(resource: str) -> bool:
    """Return whether a string is a name, or a slot of one, as it is, without normalization."""
    try:
        return check_slot(resource) == resource
    except BadResource:
        return False


def _refusal(fault: str, name: str) -> BadResource:
    return BadResource(
        f"the resource name contains a {fault}; resource('order:<int:pk>', pk=value) makes a valid "
        "name of any value",
        resource=printable(name),
    )


def encode(value: str) -> str:
    """Return a value as one segment of a resource name; different values give different segments.

    The value is normalized to Unicode form NFC. `:`, `~`, `%` and every character that a name
    must not contain become `%XX`, one for each byte of UTF-8. Raises BadResource for a lone
    surrogate.
    """
    if _is_plain_value(value):
        return value
    return "".join(map(_encoded, unicodedata.normalize("NFC", value)))


def _encoded(character: str) -> str:
    if character not in _SEPARATORS and character != "%" and not _fault(character):
        return character
    try:
        return "".join(f"%{byte:02X}" for byte in character.encode())
    except UnicodeEncodeError:
        raise BadResource("a value contains a lone surrogate, which is not valid Unicode") from None
