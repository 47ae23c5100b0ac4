"""The replies that plainly grant an acquire of one resource or a release, as bytes.

Nearly every reply is one. If nothing else is received with it, it is compared as bytes, which takes
less time than to parse it.
"""

from __future__ import annotations

from struct import Struct

from redlock_django.engine.protocol.commands import Command
from redlock_django.engine.protocol.statuses import GRANTED

_HEADER, _END = b"$32\r\n", b"\r\n"
_BEGINNING = Struct(f"<{len(_HEADER)}s2q")  # with the number of the round, and the status
_GRANT = Struct(f"<{_BEGINNING.size}s2q{len(_END)}x")
GRANT_SIZE = _GRANT.size
"""The bytes of a reply that grants an acquire."""

read_grant = _GRANT.unpack
"""Return what such a reply has: its beginning, the master's clock in µs, the fence."""


def plain_grant(command: Command, number: int) -> tuple[bytes | None, int]:
    """Return how a reply begins that plainly grants a command, and its length as an array.

    That to a release is not longer than its beginning. Instead of a beginning, None if the reply is
    received as an array: that to several resources.
    """
    if not command.fenced:
        return b":%d\r\n" % number, 3
    fences = len(command.resources)
    return (_BEGINNING.pack(_HEADER, number, GRANTED) if fences == 1 else None), 3 + fences


def parsed_grant(data: bytes) -> bytes:
    """Return a reply that grants an acquire as a parser does."""
    return data[len(_HEADER) : -len(_END)]
