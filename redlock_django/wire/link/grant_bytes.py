"""The bytes of replies that grant a release, or an acquire of one resource.

Nearly every reply is such a grant. If nothing else is received with it, its bytes are compared,
which takes less time than to parse it.
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
"""Return the prefix, the master's clock in µs and the fence of such a reply."""


def plain_grant(command: Command, number: int) -> tuple[bytes | None, int]:
    """Return the prefix of the reply that grants `command`, and its length as an array.

    The reply that grants a release is its prefix alone. The prefix is None for several resources,
    whose reply is received as an array.
    """
    if not command.fenced:
        return b":%d\r\n" % number, 3
    fences = len(command.resources)
    return (_BEGINNING.pack(_HEADER, number, GRANTED) if fences == 1 else None), 3 + fences


def parsed_grant(data: bytes) -> bytes:
    """Return what a parser makes of a reply that grants an acquire."""
    return data[len(_HEADER) : -len(_END)]
