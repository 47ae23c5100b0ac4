"""The base class of the commands for operators, and the formatting that they share.

stdout carries data only, as a table for people or as JSON for programs; messages go to stderr. An
exit status other than 0 is raised as CommandError, so `call_command` never raises SystemExit.
Commands about locks need no database.
"""

from __future__ import annotations

import json
import math
import os
import pwd
import shutil
import socket
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from redlock_django.engine.inspection.holders import Holding
from redlock_django.exceptions import BadResource, InvalidRedlock
from redlock_django.locking.names import printable
from redlock_django.management.single_run import UsageError, add_using
from redlock_django.management.text_table import text_table


class OperatorCommand(BaseCommand):
    """Base of the commands for operators: `--using`, `--format`, and output."""

    requires_system_checks = ()  # The commands must work when a check fails.
    as_json: bool

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments that all operator commands share."""
        add_using(parser)
        parser.add_argument(
            "--format",
            choices=("table", "json"),
            default="table",
            help="a table for people (the default), or one JSON document",
        )

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command; raise CommandError with status 2 for invalid settings or names."""
        self.as_json = options.get("format") == "json"
        try:
            output: str | None = super().execute(*args, **options)
        except (InvalidRedlock, BadResource) as error:
            raise UsageError(str(error)) from None
        except BrokenPipeError:
            # The reader, such as `head`, has closed the pipe. Writing the rest of the buffer at
            # exit would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return None
        return output

    def write_json(self, document: Mapping[str, Any], *, indent: int | None = 2) -> None:
        """Write a JSON document in ASCII, so that it contains no terminal control characters."""
        self.stdout.write(json.dumps(document, indent=indent, allow_nan=False))

    def write_table(
        self, heads: Sequence[str], rows: Iterable[Sequence[str]], *, flexible: Iterable[int]
    ) -> None:
        """Write a table. On a terminal it is cut to the width; a pipe gets everything."""
        columns = shutil.get_terminal_size().columns if self.stdout.isatty() else None
        if text := text_table(heads, rows, width=columns, flexible=flexible):
            self.stdout.write(text)

    def warn(self, text: str) -> None:
        """Write a message about the data to stderr."""
        self.stderr.write(printable(text), self.style.WARNING)

    def add_confirmation(self, parser: CommandParser, *, requires: str = "", by: str) -> None:
        """Add the arguments of a command that asks for confirmation and records the operator."""
        parser.add_argument(
            "--noinput",
            "--no-input",
            action="store_false",
            dest="interactive",
            help=f"do not ask for confirmation{requires}",
        )
        parser.add_argument("--by", default="", metavar="NAME", help=f"your name, for {by}")

    def require_terminal(self, needed: str = "--noinput") -> None:
        """Raise UsageError unless stdin is a terminal, on which the operator can confirm."""
        if not sys.stdin.isatty():
            problem = "Cannot ask for confirmation because stdin is not a terminal."
            raise UsageError(f"{problem} Add {needed}.")

    def confirm(self, question: str) -> bool:
        """Ask on stderr, because stdout is for data, and return whether the answer is "yes"."""
        self.stderr.write(question, ending="")
        self.stderr.flush()
        try:
            return input() == "yes"
        except (EOFError, KeyboardInterrupt):
            self.stderr.write("")
            return False

    def warn_of_silent(self, silent: Mapping[str, str]) -> None:
        """Write which masters did not answer, and why."""
        for name, reason in silent.items():
            self.warn(f"{name} {reason}")


def whole_number(least: int, most: int | None = None, of: str = "") -> Callable[[str], int]:
    """Return the type of an argument that is a whole number; `of` is what it counts."""
    needed = f"must be a whole number, {least} or more"
    if most is not None:
        needed = f"must be a number of {of} from {least} to {most}"

    def number(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not least <= int(text) <= (most or math.inf):
            raise ArgumentTypeError(needed)
        return int(text)

    return number


def iso(seconds: float | None) -> str | None:
    """Return a time (seconds since 1970) as ISO 8601 in UTC with milliseconds."""
    if seconds is None:
        return None
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")


def operator_name(name: str) -> str:
    """Return the given name of the operator followed by "user@host" of this process."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # Many containers have no entry for the user.
        user = f"uid {os.getuid()}"
    system = f"{user}@{socket.gethostname()}"
    return printable(f"{name} ({system})" if name else system)


def holder_summary(holder: Mapping[str, str | int | float]) -> str:
    """Return the description of a holder in one line: "web1:4711 gunicorn 2.4.1 /orders/7/pay/"."""
    process = ":".join(str(holder[name]) for name in ("host", "pid") if name in holder)
    rest = (str(holder[name]) for name in ("app", "release", "path") if holder.get(name))
    leads = "leader" if holder.get("leader") == 1 else ""
    user = f"user={holder['user']}" if holder.get("user") else ""
    return " ".join(filter(None, (process, *rest, leads, user))) or "?"


def lock_document(holding: Holding) -> dict[str, Any]:
    """Return a lock in the form of the JSON documents."""
    return {
        "resource": holding.name,
        "slot": holding.slot,
        "limit": holding.limit,
        "state": holding.state.value,
        "fingerprint": holding.fingerprint,
        "ttl": None if holding.ttl is None else round(holding.ttl, 3),
        "since": iso(holding.since),
        "minimum_hold_until": iso(holding.minimum_hold_until),
        "handed_on": holding.handed_on,
        "holder": dict(holding.holder),
        "waiters": holding.waiters,
        "masters": [sighting.server for sighting in holding.leading],
        "rivals": {rival.server: rival.fingerprint for rival in holding.rivals},
    }
