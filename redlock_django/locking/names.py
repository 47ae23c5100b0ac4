"""What a resource name may be, and how a value is written so that it can stand inside one.

One table serves both: what `encode` would have to encode, `check_resource` refuses.
"""

from __future__ import annotations

import re
import unicodedata

from redlock_django.engine.printable import printable as printable
from redlock_django.exceptions import BadResource

LONGEST = 512
"""Bytes of UTF-8 a resource name may have."""

HASH_MARK = "~"
"""Stands before the hash that replaces the tail of a long name; no encoded value holds it."""

# ":" and "~" give a name its structure: they are right in a name and encoded in a value.
_STRUCTURE = frozenset(":" + HASH_MARK)
# Globs make SCAN MATCH ambiguous, braces are Redis Cluster's hash tag, <> are the template's.
_SPECIAL = frozenset('*?[]^\\<>{}"')
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_ESCAPE = re.compile("%(?![0-9A-F]{2})")


def _fault(character: str) -> str | None:
    """Say what is wrong with a character in a name, or None."""
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
    return "reserved character" if character in _SPECIAL else None


def check_resource(name: object) -> str:
    """Give `name` in Unicode form NFC if it can be a resource name.

    A name is a str of 1 to 512 bytes of UTF-8 without spaces, control, bidi and other invisible
    characters, lone surrogates, any of `* ? [ ] ^ \\ < > { } "`, and without `%` but before
    two hex digits (0-9 A-F). Raises BadResource, which says what stands where.
    """
    if not isinstance(name, str):
        # No implicit str(): None would make one lock for everybody.
        raise BadResource(f"a resource name must be str, got {type(name).__name__}")
    if not name:
        raise BadResource("a resource name must not be empty")
    name = unicodedata.normalize("NFC", str.__str__(name))
    for position, character in enumerate(name):
        if fault := _fault(character):
            raise _refusal(f"{fault} U+{ord(character):04X} at position {position}", name)
    if bare := _ESCAPE.search(name):
        raise _refusal(f"'%' without two hex digits (0-9 A-F) at position {bare.start()}", name)
    size = len(name.encode())
    if size > LONGEST:
        raise BadResource(
            f"the resource name has {size} bytes, at most {LONGEST} are possible; "
            "resource() hashes the tail of a long one",
            resource=printable(name),
        )
    return name


def _refusal(fault: str, name: str) -> BadResource:
    return BadResource(
        f"the resource name holds a {fault}; resource('order:<pk>', pk=value) writes any value "
        "as a name",
        resource=printable(name),
    )


def encode(value: str) -> str:
    """Write a value so that it can be one segment of a resource name, and no other value can.

    The value is brought to Unicode form NFC; `:` `~` `%` and all that a name must not hold
    become `%XX` per byte of UTF-8. Raises BadResource for a lone surrogate.
    """
    return "".join(map(_encoded, unicodedata.normalize("NFC", value)))


def _encoded(character: str) -> str:
    if character not in _STRUCTURE and character != "%" and not _fault(character):
        return character
    try:
        return "".join(f"%{byte:02X}" for byte in character.encode())
    except UnicodeEncodeError:
        raise BadResource("a value holds a lone surrogate, which is no valid Unicode") from None
