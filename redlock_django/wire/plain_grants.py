"""The replies that plainly grant an acquire of one resource or a release, as bytes.

Nearly every reply is one, and nothing else is received with it. It is compared as bytes, which
takes less time than to parse it.
"""

from __future__ import annotations

from struct import Struct

from redlock_django.engine.commands import Command
from redlock_django.engine.statuses import GRANTED

_HEADER, _END = b"$32\r\n", b"\r\n"
_BEGINNING = Struct(f"<{len(_HEADER)}s2q")  # with the number of the round, and the status
_GRANT = Struct(f"<{_BEGINNING.size}s2q{len(_END)}x")
GRANT_SIZE = _GRANT.size
"""The bytes of a reply that grants an acquire."""

read_grant = _GRANT.unpack
"""Return what such a reply has: its beginning, the master's clock in µs, the fence."""


def beginning_of_grant(command: Command, number: int) -> bytes | None:
    """Return how a reply begins that grants a command; that to a release is not longer.

    None if such a reply has another form: that to several resources is an array.
    """
    if not command.fenced:
        return b":%d\r\n" % number
    return _BEGINNING.pack(_HEADER, number, GRANTED) if len(command.resources) == 1 else None


def parsed_grant(data: bytes) -> bytes:
    """Return a reply that grants an acquire as a parser does."""
    return data[len(_HEADER) : -len(_END)]
