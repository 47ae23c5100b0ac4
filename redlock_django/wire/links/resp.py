"""RESP: the bytes of commands, and of the replies that grant them."""

from __future__ import annotations

import re
from dataclasses import replace
from struct import Struct
from typing import Any

from redlock_django.engine.protocol.commands import (
    PROPOSAL,
    TOKEN,
    Acquire,
    Argument,
    Command,
    Release,
    script,
)
from redlock_django.engine.protocol.slots import name_of


def pack(*parts: str | bytes | int) -> bytes:
    """Return a whole command as RESP."""
    return b"*%d\r\n%s" % (len(parts), pack_parts(*parts))


def pack_parts(*parts: str | bytes | int) -> bytes:
    """Return parts of a command as RESP."""
    # Not hiredis.pack_command: a signal that interrupts it crashes the process.
    packed = []
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        packed.append(b"$%d\r\n%s\r\n" % (len(raw), raw))
    return b"".join(packed)


def pack_command(command: Command, number: int, *, text: bool = False) -> bytes:
    """Return a command of the engine as RESP, without the marker that a trusted command ends with.

    With `text` the script itself is sent (EVAL), else its hash (EVALSHA).
    """
    source, sha = script(command.name, command.deployment)
    verb, code = ("EVAL", source) if text else ("EVALSHA", sha)
    keys = command.keys()
    parts: tuple[Argument, ...] = (verb, code, len(keys), *keys, number, *command.arguments())
    return b"*%d\r\n%s" % (len(parts) + (2 if command.trusted else 0), pack_parts(*parts))


MOST = 256  # templates kept; there is one for each length of names, holders and numbers
_GAP, _CONSTANTS = "\x01", b"\x02"  # in a sample; no key contains these


class Templates:
    """Templates of the commands that nearly every lock sends: bytes with gaps.

    To fill in what differs from the last acquire or release (token, holder, round number, proposal,
    name, waiter) takes much less time than to spell it. A template is made from `pack_command`
    itself, so that there is one place that knows the layout of a command. Other commands (several
    resources, tombstones) are spelled by `pack_command` each time. Without templates, a pair of
    acquire and release takes 15 % more bytecodes (`python -m benchmarks pair_parts`, 24 November
    2026).
    """

    def __init__(self) -> None:
        self._templates: dict[tuple[object, ...], bytes] = {}

    def pack(self, command: Command, number: int) -> bytes:
        """Return a command as `pack_command` does."""
        if len(command.resources) != 1:
            return pack_command(command, number)
        name, value = command.resources[0].encode(), command.value.encode()
        limit, suffix = command.limit, b""
        slots: tuple[bytes, ...] = ()  # the name in the key of each slot
        if limit > 1:  # the keys of slots differ in their suffixes alone
            resource, name = name, name_of(command.resources[0]).encode()
            suffix, slots = resource[len(name) :], (name,) * limit
        digits = b"%d" % number
        fixed: float
        gaps: tuple[bytes, ...]
        if type(command) is Acquire:
            fixed = command.ttl
            proposal = PROPOSAL.pack(command.proposal)
            gaps = (value[:TOKEN], name, name, name, *slots, digits, value, proposal)
            if command.waiter:
                gaps += (b"%d" % command.ticket, command.waiter.encode())
        elif type(command) is Release and not (command.bury or command.left):
            fixed = command.calls
            queue = (name, *slots) if command.calls else ()
            waiter = (command.waiter.encode(),) if command.waiter else ()
            gaps = (name, *queue, digits, value, *waiter)
        else:
            return pack_command(command, number)
        key = command.name, fixed, limit, suffix, *map(len, gaps)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= MOST:
                self._templates.clear()
            template = self._templates[key] = _template(command, number, suffix.decode())
        return template % gaps


def _template(command: Acquire | Release, number: int, suffix: str) -> bytes:
    """Return a command with `%b` for each gap; the `suffix` of a slot stays."""
    name = command.resources[0].removesuffix(suffix)
    changed = {
        "resources": (_gap(name) + suffix,),
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


# Every reply to a command is a string, nearly all of 24 to 99 bytes. These are plain: they are
# read without a parser, which takes less time.
START = len(b"$24\r\n")
PLAIN = {b"$%d\r\n" % size: Struct(f"<{START}x3q{size - 24}s2x") for size in range(24, 100)}
"""The format of a plain reply by its START: round, status, master's clock in µs, and the rest."""


def is_cut(data: bytearray) -> bool:
    """Return whether these bytes are the beginning of a plain reply, whose rest is to come."""
    plain = PLAIN.get(bytes(data[:START]))
    return data.startswith(b"$") and len(data) < (START if plain is None else plain.size)
