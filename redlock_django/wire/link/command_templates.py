"""Templates of the commands that nearly every lock sends: bytes with gaps.

To spell an acquire or a release costs much more than to fill in what differs from the last one:
token, holder, round number, proposal, the name of the resource, and the waiter. A template is made
from `pack_command` itself, so that there is one place that knows the layout of a command. Other
commands (several resources, tombstones) are spelled by `pack_command` each time.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from redlock_django.engine.protocol.commands import PROPOSAL, TOKEN, Acquire, Command, Release
from redlock_django.wire.link.link import pack_command

MOST = 256  # templates kept; there is one for each length of names, holders and numbers
_GAP, _CONSTANTS = "\x01", b"\x02"  # in a sample; no key contains these


class Templates:
    """The templates of one deployment's commands."""

    def __init__(self) -> None:
        self._templates: dict[tuple[object, ...], bytes] = {}

    def pack(self, command: Command, number: int) -> bytes:
        """Return a command as `pack_command` does."""
        if len(command.resources) != 1:
            return pack_command(command, number)
        name, value = command.resources[0].encode(), command.value.encode()
        digits = b"%d" % number
        fixed: float
        gaps: tuple[bytes, ...]
        if type(command) is Acquire:
            fixed = command.ttl
            proposal = PROPOSAL.pack(command.proposal)
            gaps = (value[:TOKEN], name, name, name, digits, value, proposal, name)
            if command.waiter:
                gaps += (b"%d" % command.ticket, command.waiter.encode())
        elif type(command) is Release and not (command.bury or command.left):
            fixed = command.calls
            if command.waiter:
                gaps = (name, name, digits, value, command.waiter.encode(), name)
            else:
                gaps = (name, name, digits, value, name) if fixed else (name, digits, value, name)
        else:
            return pack_command(command, number)
        key: tuple[object, ...] = (command.name, fixed, len(name), len(value), len(digits))
        if command.waiter:
            key += tuple(map(len, gaps))
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= MOST:
                self._templates.clear()
            template = self._templates[key] = _template(command, number)
        return template % gaps


def _template(command: Acquire | Release, number: int) -> bytes:
    """Return a command with `%b` for each gap."""
    changed = {
        "resources": (_gap(command.resources[0]),),
        "value": _gap(command.value),
        "waiter": _gap(command.waiter),
    }
    constants = b""
    if isinstance(command, Acquire):
        changed["ticket"] = _gap(command.ticket)
        (changed["proposal"],) = PROPOSAL.unpack(_GAP.encode() * PROPOSAL.size)
        constants = command.constants()
    data = pack_command(replace(command, **changed), _gap(number))
    if constants:  # these may have any bytes, also those that fill gaps
        data = data.replace(constants, _CONSTANTS)
    template = re.sub(_GAP.encode() + b"+", b"%b", data.replace(b"%", b"%%"))
    return template.replace(_CONSTANTS, constants.replace(b"%", b"%%"))


def _gap(piece: str | int) -> Any:
    """Return the placeholder of a piece in a sample: as many bytes, which no key contains."""
    return _GAP * len(str(piece).encode())
