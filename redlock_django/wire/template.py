"""Templates of the commands that nearly every lock sends: bytes with gaps.

To spell an acquire or a release costs much more than to fill in what differs from the last one:
token, holder, round number, proposal and the name of the resource. A template is made from
`pack_command` itself, so that there is one place that knows the layout of a command. Other
commands (several resources, waiters, tombstones) are spelled by `pack_command` each time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import Any

from redlock_django.engine.commands import PROPOSAL, Acquire, Command, Release
from redlock_django.wire.link import pack_command

MOST = 256  # templates kept; there is one for each length of names, holders and numbers
_GAPS = "\x01\x02\x03\x04\x05"  # what fills the gaps of a sample: no key contains these
_CONSTANTS = b"\x06"  # nor this

Fill = Callable[[tuple[bytes, ...]], tuple[bytes, ...]]


class Templates:
    """The templates of one deployment's commands."""

    def __init__(self) -> None:
        self._templates: dict[tuple[object, ...], tuple[bytes, Fill]] = {}

    def pack(self, command: Command, number: int) -> bytes:
        """Return a command as `pack_command` does."""
        fixed: object
        if type(command) is Acquire and not command.waiter:
            fixed, proposal = command.ttl, command.proposal
        elif type(command) is Release and command.plain:
            fixed, proposal = command.calls, 0
        else:
            return pack_command(command, number)
        if len(command.resources) != 1:
            return pack_command(command, number)
        token, space, holder = command.value.encode().partition(b" ")
        name = command.resources[0].encode()
        round_number = b"%d" % number
        gaps = (name, token, holder, round_number, PROPOSAL.pack(proposal))
        key = (command.name, fixed, len(name), len(token), len(holder), len(round_number))
        template = self._templates.get(key)
        if template is None:
            if not (space and all(gaps)):
                return pack_command(command, number)
            if len(self._templates) >= MOST:
                self._templates.clear()
            template = self._templates[key] = _template(command, gaps)
        layout, fill = template
        return layout % fill(gaps)


def _template(command: Command, gaps: tuple[bytes, ...]) -> tuple[bytes, Fill]:
    """Return the bytes of a command with `%b` for each gap, and what puts the gaps in order."""
    name, token, holder, number, proposal = (
        gap * len(text) for gap, text in zip(_GAPS, gaps, strict=True)
    )
    changed: dict[str, Any] = {"resources": (name,), "value": f"{token} {holder}"}
    constants = b""
    if isinstance(command, Acquire):
        (changed["proposal"],) = PROPOSAL.unpack(proposal.encode())
        constants = command.constants()
    sample: Any = number
    data = pack_command(replace(command, **changed), sample)
    if constants:  # these may have any bytes, also those that fill gaps
        data = data.replace(constants, _CONSTANTS)
    pieces = re.split(f"([{_GAPS}]+)".encode(), data)
    order = [_GAPS.index(chr(gap[0])) for gap in pieces[1::2]]
    layout = b"%b".join(piece.replace(b"%", b"%%") for piece in pieces[::2])
    return layout.replace(_CONSTANTS, constants.replace(b"%", b"%%")), itemgetter(*order)
