"""The base class of the commands for operators, and the formatting that they share.

stdout carries data only, as a table for people or as JSON for programs; messages go to stderr. An
exit status other than 0 is raised as CommandError, so `call_command` never raises SystemExit.
Commands about locks need no database.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from redlock_django.exceptions import BadResource, InvalidRedlock
from redlock_django.locking.names import printable
from redlock_django.management.single_run import UsageError, add_using


class OperatorCommand(BaseCommand):
    """Base of the commands for operators: `--using`, confirmation, and output."""

    requires_system_checks = ()  # The commands must work when a check fails.

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the argument that all operator commands share."""
        add_using(parser)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command; raise CommandError with status 2 for invalid settings or names."""
        output: str | None
        try:
            try:
                output = super().execute(*args, **options)
            finally:
                self.stdout.flush()
        except (InvalidRedlock, BadResource) as error:
            raise UsageError(str(error)) from None
        except BrokenPipeError:
            # The reader, such as `head`, has closed the pipe. Writing the rest of the buffer at
            # exit would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return None
        return output

    def write_json(self, document: Mapping[str, Any]) -> None:
        """Write a JSON document in ASCII, so that it contains no terminal control characters."""
        self.stdout.write(json.dumps(document, indent=2, allow_nan=False))

    def write_table(self, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Write rows in aligned columns below `heads`; nothing if there are no rows."""
        cells = [tuple(map(printable, row)) for row in rows]
        if not cells:
            return
        cells.insert(0, tuple(heads))
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for row in cells:
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.stdout.write(line.rstrip())

    def warn(self, text: str) -> None:
        """Write a message about the data to stderr."""
        self.stderr.write(printable(text), self.style.WARNING)

    def warn_of_silent(self, silent: Mapping[str, str]) -> None:
        """Write which masters did not answer, and why."""
        for name, reason in silent.items():
            self.warn(f"{name} {reason}")

    def confirm(self, question: str, otherwise: str = " Add --noinput.") -> bool:
        """Ask on stderr, because stdout is for data, and return whether the answer is "yes".

        Raises UsageError without a terminal; `otherwise` is what to do then.
        """
        if not sys.stdin.isatty():
            problem = "Cannot ask for confirmation because stdin is not a terminal."
            raise UsageError(problem + otherwise)
        self.stderr.write(question, ending="")
        self.stderr.flush()
        try:
            return input() == "yes"
        except (EOFError, KeyboardInterrupt):
            self.stderr.write("")
            return False


def add_format(parser: CommandParser) -> None:
    """Add the argument `--format`."""
    parser.add_argument(
        "--format",
        choices=("table", "json"),
        default="table",
        help="a table for people (the default), or one JSON document",
    )


def add_noinput(parser: CommandParser, also: str = "") -> None:
    """Add the argument `--noinput` of a command that asks for confirmation."""
    parser.add_argument(
        "--noinput",
        "--no-input",
        action="store_false",
        dest="interactive",
        help=f"do not ask for confirmation{also}",
    )


def iso(seconds: float | None) -> str | None:
    """Return a time (seconds since 1970) as ISO 8601 in UTC with milliseconds."""
    if seconds is None:
        return None
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")


def operator_name() -> str:
    """Return "user@host" of this process."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # Many containers have no entry for the user.
        user = f"uid {os.getuid()}"
    return printable(f"{user}@{socket.gethostname()}")


def holder_summary(holder: Mapping[str, str | int | float]) -> str:
    """Return the description of a holder in one line: "web1:4711 gunicorn 2.4.1 /orders/7/pay/"."""
    process = ":".join(str(holder[name]) for name in ("host", "pid") if name in holder)
    rest = (str(holder[name]) for name in ("app", "release", "path") if holder.get(name))
    leads = "leader" if holder.get("leader") == 1 else ""
    user = f"user={holder['user']}" if holder.get("user") else ""
    return " ".join(filter(None, (process, *rest, leads, user))) or "?"
