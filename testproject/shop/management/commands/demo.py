"""`manage.py demo`: five masters, a shop, concurrent payments, and masters that fail."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from io import StringIO
from typing import TYPE_CHECKING, Any

from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from django.test.utils import override_settings

from redlock_django.testing import local_masters
from redlock_django.testing.processes import ProcessGroup
from testproject.shop.scenario import PROVIDER, Scenario
from testproject.shop.serving import Shopper, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.core.management.base import CommandParser


class Command(BaseCommand):
    """Demonstrate the guarantees of the locks, and check each of them."""

    help = "Start five masters and the shop, show races, failures and recovery, then keep serving."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add `--exit` for automatic runs and `--port`."""
        parser.add_argument(
            "--exit",
            action="store_true",
            help="exit after the checks, with status 0 only if all of them passed",
        )
        parser.add_argument("--port", type=int, default=0, help="HTTP port (default: a free port)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the scenario, then serve; remove all processes and files however it ends."""
        # Every fault that would be logged is caused by the demo itself.
        logging.getLogger("redlock_django").addHandler(logging.NullHandler())
        try:
            failed = self._run(options["port"], options["exit"])
        except KeyboardInterrupt:
            raise CommandError("interrupted before the end of the demo", returncode=130) from None
        if failed:
            raise CommandError(f"{failed} checks failed")

    def _run(self, port: int, leave: bool) -> int:
        began = time.perf_counter()
        with contextlib.ExitStack() as stack:
            masters = stack.enter_context(local_masters(5))
            took = (time.perf_counter() - began) * 1000
            processes = stack.enter_context(ProcessGroup("redlock-demo-"))
            # Each thread creates its connection from these settings at first use.
            connections.close_all()
            connections["default"].settings_dict["NAME"] = str(processes.directory / "shop.sqlite3")
            stack.callback(connections.close_all)
            redlock = {"default": {"MASTERS": [master.url for master in masters]}}
            stack.enter_context(override_settings(REDLOCK=redlock, SHOP_PAYMENT_SECONDS=PROVIDER))

            check_interrupt = stack.enter_context(deferred_interrupt())
            scenario = Scenario(self.stdout, self.style, masters, check_interrupt)
            scenario.heading("Five masters, one shop")
            ports = ", ".join(str(master.port) for master in masters)
            scenario.line(f"five masters started in {took:.0f} ms, on 127.0.0.1: {ports}", True)
            call_command("migrate", verbosity=0, interactive=False)
            call_command("redlock_init", stdout=StringIO())
            scenario.line(
                "database migrated; `redlock_init` has declared the masters trusted", True
            )
            try:
                url = stack.enter_context(serving(port))
            except OSError as error:
                raise CommandError(f"cannot serve on port {port}: {error}") from error
            scenario.run(Shopper(url))
            if not leave:
                self._serve(scenario, url, masters[1].process.pid)
            return scenario.failed

    def _serve(self, scenario: Scenario, url: str, pid: int) -> None:
        scenario.open_orders(3)
        scenario.heading("Your turn")
        self.stdout.write(f"  The shop is at {self.style.SUCCESS(url)}")
        User.objects.create_superuser("demo", password="demo")
        admin = self.style.SUCCESS(f"{url}admin/")
        self.stdout.write(f"  Locks and records are at {admin}: user demo, password demo")
        self.stdout.write('  Press "Pay twice at once" there, or "Double click".')
        self.stdout.write("  Try it with a paused master, too:")
        self.stdout.write(f"    kill -STOP {pid}     and     kill -CONT {pid}")
        self.stdout.write("  Press Ctrl-C to stop everything.")
        self.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            while True:  # A signal just before one long sleep would be noticed only after it.
                scenario.check_interrupt()
                time.sleep(0.1)
        self.stdout.write("\n  Masters, database and server have been removed.")


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], None]]:
    """Yield a function that raises `KeyboardInterrupt` if Ctrl-C has been pressed.

    A second Ctrl-C raises at once. The first is deferred because it could be lost otherwise:
    Python prints and drops exceptions in the callback of a weak reference or in a finalizer.
    """
    ended = False

    def note(_number: int, _frame: object) -> None:
        nonlocal ended
        ended = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def check_interrupt() -> None:
        if ended:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield check_interrupt
    finally:
        signal.signal(signal.SIGINT, before)
