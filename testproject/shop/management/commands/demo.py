"""`manage.py demo`: five masters, a shop, a crowd that pays, and masters that fail."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from io import StringIO
from typing import TYPE_CHECKING, Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from django.test.utils import override_settings

from redlock_django.testing import local_masters
from redlock_django.testing.processes import ProcessGroup
from testproject.shop.serving import Shopper, serving
from testproject.shop.show import PROVIDER, Show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.core.management.base import CommandParser


class Command(BaseCommand):
    """Shows what the locks promise, line by line, and checks every line."""

    help = "Start five masters and the shop, show races, failures and recovery, then go on serving."

    def add_arguments(self, parser: CommandParser) -> None:
        """`--exit` for machines, `--port` for people."""
        parser.add_argument(
            "--exit",
            action="store_true",
            help="end after the show; status 0 only if every line came out as promised",
        )
        parser.add_argument("--port", type=int, default=0, help="HTTP port (default: a free one)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Set everything up, show, serve; nothing is left behind, whatever the way out."""
        # The log would run through the show; every fault it tells of is one we made.
        logging.getLogger("redlock_django").addHandler(logging.NullHandler())
        try:
            failed = self._run(options["port"], options["exit"])
        except KeyboardInterrupt:
            raise CommandError("stopped before the end of the show", returncode=130) from None
        if failed:
            raise CommandError(f"{failed} of the lines did not come out as promised")

    def _run(self, port: int, leave: bool) -> int:
        began = time.perf_counter()
        with contextlib.ExitStack() as stack:
            masters = stack.enter_context(local_masters(5))
            took = (time.perf_counter() - began) * 1000
            place = stack.enter_context(ProcessGroup("redlock-demo-"))
            # Every thread's connection is made from these settings when it is first used.
            connections.close_all()
            connections["default"].settings_dict["NAME"] = str(place.directory / "shop.sqlite3")
            stack.callback(connections.close_all)
            redlock = {"default": {"MASTERS": [master.url for master in masters]}}
            stack.enter_context(override_settings(REDLOCK=redlock, SHOP_PAYMENT_SECONDS=PROVIDER))

            go_on = stack.enter_context(ended_between_lines())
            show = Show(self.stdout, self.style, masters, go_on)
            show.heading("Five masters, one shop")
            ports = ", ".join(str(master.port) for master in masters)
            show.line(f"five masters started in {took:.0f} ms, on 127.0.0.1: {ports}", True)
            call_command("migrate", verbosity=0, interactive=False)
            call_command("redlock_init", stdout=StringIO())
            show.line("database migrated; `redlock_init` has declared the masters ready", True)
            try:
                url = stack.enter_context(serving(port))
            except OSError as error:
                raise CommandError(f"cannot serve on port {port}: {error}") from error
            show.play(Shopper(url))
            if not leave:
                self._serve(show, url, masters[1].process.pid)
            return show.failed

    def _serve(self, show: Show, url: str, pid: int) -> None:
        show.open_orders(3)
        show.heading("Your turn")
        self.stdout.write(f"  The shop is at {self.style.SUCCESS(url)}")
        self.stdout.write('  Press "Pay twice at once" there, or "Double click".')
        self.stdout.write("  Try it with a master paused, too:")
        self.stdout.write(f"    kill -STOP {pid}     and     kill -CONT {pid}")
        self.stdout.write("  Ctrl-C ends it all.")
        self.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            while True:  # a signal just before one long wait would be seen only after it
                show.go_on()
                time.sleep(0.1)
        self.stdout.write("\n  Masters, database and server are gone.")


@contextlib.contextmanager
def ended_between_lines() -> Iterator[Callable[[], None]]:
    """Yield what raises `KeyboardInterrupt` if there was a Ctrl-C; the second raises by itself.

    Raised wherever the first one falls it may be lost: Python prints and drops what is raised
    within a weak reference's callback or a finaliser.
    """
    ended = False

    def note(_number: int, _frame: object) -> None:
        nonlocal ended
        ended = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def go_on() -> None:
        if ended:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield go_on
    finally:
        signal.signal(signal.SIGINT, before)
