"""What the commands for who is on call share: their manners.

stdout carries data only, as a table for people or as JSON for programs; all that is said about
it goes to stderr. A status other than 0 is a CommandError, so `call_command` never meets
SystemExit. What is about locks needs no database.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from redlock_django.engine.holders import Holding
from redlock_django.exceptions import BadResource, InvalidRedlock
from redlock_django.locking.names import printable
from redlock_django.management.single_run import BAD_ARGUMENTS
from redlock_django.management.table import table


class OperatorCommand(BaseCommand):
    """Base of the commands for who is on call: `--using`, `--format`, and how they write."""

    requires_system_checks = ()  # it must work where something is wrong
    as_json: bool

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments that all of them take."""
        parser.add_argument(
            "--using", default="default", metavar="ALIAS", help="the alias in REDLOCK"
        )
        parser.add_argument(
            "--format",
            choices=("table", "json"),
            default="table",
            help="a table for people (the default), or one JSON document",
        )

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command; wrong settings and wrong names end it with status 2."""
        self.as_json = options.get("format") == "json"
        try:
            output: str | None = super().execute(*args, **options)
        except (InvalidRedlock, BadResource) as error:
            problem = str(error)
        except BrokenPipeError:
            # `| head` has seen enough. What is still buffered would fail once more at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return None
        else:
            return output
        raise CommandError(problem, returncode=BAD_ARGUMENTS)

    def write_json(self, document: Mapping[str, Any], *, indent: int | None = 2) -> None:
        """Write one document. Only ASCII, so that nothing in it can steer a terminal."""
        self.stdout.write(json.dumps(document, indent=indent, allow_nan=False))

    def write_table(
        self, heads: Sequence[str], rows: Iterable[Sequence[str]], *, flexible: Iterable[int]
    ) -> None:
        """Write a table, fitted where a terminal is; a pipe gets everything."""
        columns = shutil.get_terminal_size().columns if self.stdout.isatty() else None
        if text := table(heads, rows, width=columns, flexible=flexible):
            self.stdout.write(text)

    def warn(self, text: str) -> None:
        """Say something about the data."""
        self.stderr.write(printable(text), self.style.WARNING)

    def asked(self, question: str) -> bool:
        """Ask on the terminal, whose stdout is for data; everything but "yes" is no."""
        self.stderr.write(question, ending="")
        self.stderr.flush()
        try:
            return input() == "yes"
        except (EOFError, KeyboardInterrupt):
            self.stderr.write("")
            return False

    def warn_of_silent(self, silent: Mapping[str, str]) -> None:
        """Say which masters could not be asked, and why."""
        for name, reason in silent.items():
            self.warn(f"{name} {reason}")


def iso(seconds: float | None) -> str | None:
    """Give a moment (seconds since 1970) as ISO 8601 in UTC, to the millisecond."""
    if seconds is None:
        return None
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")


def whoever(name: str) -> str:
    """Give who runs a command: what they say, and what the system knows."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # as in many a container
        user = f"uid {os.getuid()}"
    system = f"{user}@{socket.gethostname()}"
    return printable(f"{name} ({system})" if name else system)


def person(holder: Mapping[str, str | int | float]) -> str:
    """Give what a holder says of itself in one line: "web1:4711 gunicorn /orders/7/pay/"."""
    place = ":".join(str(holder[name]) for name in ("host", "pid") if name in holder)
    rest = (str(holder[name]) for name in ("app", "path") if holder.get(name))
    named = f"user={holder['user']}" if holder.get("user") else ""
    return " ".join(filter(None, (place, *rest, named))) or "?"


def described(holding: Holding) -> dict[str, Any]:
    """Give a lock as JSON has it."""
    return {
        "resource": holding.resource,
        "state": holding.state.value,
        "fingerprint": holding.fingerprint,
        "ttl": None if holding.ttl is None else round(holding.ttl, 3),
        "since": iso(holding.since),
        "holder": dict(holding.holder),
        "masters": [sighting.server for sighting in holding.leading],
        "rivals": {rival.server: rival.fingerprint for rival in holding.rivals},
    }
