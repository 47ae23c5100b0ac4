"""`manage.py demo`: five masters, checks of what the locks promise, and a tour of the shop."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from redlock_django.testing import local_masters
from testproject.shop.scenario import Scenario
from testproject.shop.serving import Shopper, serving, shop_on
from testproject.shop.tour.demo_masters import demo_masters
from testproject.shop.tour.views import DEMO_USER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.core.management.base import CommandParser


class Command(BaseCommand):
    """Demonstrate the guarantees of the locks, and check each of them."""

    help = (
        "Start five masters and the shop, show races, failures and recovery, then serve a tour in "
        "which a visitor causes them."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add `--exit` for automatic runs, `--tour` and `--port`."""
        one = parser.add_mutually_exclusive_group()
        one.add_argument(
            "--exit",
            action="store_true",
            help="exit after the checks, with status 0 only if all of them passed",
        )
        one.add_argument("--tour", action="store_true", help="serve the tour without the checks")
        parser.add_argument("--port", type=int, default=0, help="HTTP port (default: a free port)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the scenario, then serve; remove all processes and files however it ends."""
        # Every fault that would be logged is caused by the demo itself.
        logging.getLogger("redlock_django").addHandler(logging.NullHandler())
        logging.getLogger("django.request").addFilter(_is_unexpected)
        try:
            failed = self._run(
                options["port"], checks=not options["tour"], serve=not options["exit"]
            )
        except KeyboardInterrupt:
            raise CommandError("interrupted before the end of the demo", returncode=130) from None
        if failed:
            raise CommandError(f"{failed} checks failed")

    def _run(self, port: int, *, checks: bool, serve: bool) -> int:
        began = time.perf_counter()
        with contextlib.ExitStack() as stack:
            masters = stack.enter_context(local_masters(5))
            took = (time.perf_counter() - began) * 1000
            check_interrupt = stack.enter_context(deferred_interrupt())
            scenario = Scenario(self.stdout, self.style, masters, check_interrupt)
            scenario.heading("Five masters, one shop")
            ports = ", ".join(str(master.port) for master in masters)
            scenario.line(f"five masters started in {took:.0f} ms, on 127.0.0.1: {ports}", True)
            stack.enter_context(shop_on(masters))
            scenario.line(
                "database migrated; `redlock_init` has declared the masters trusted", True
            )
            try:
                url = stack.enter_context(serving(port))
            except OSError as error:
                raise CommandError(f"cannot serve on port {port}: {error}") from error
            if checks:
                scenario.run(Shopper(url))
            if serve:
                stack.enter_context(demo_masters(masters))
                self._serve(scenario, url)
            return scenario.failed

    def _serve(self, scenario: Scenario, url: str) -> None:
        scenario.heading("Your turn")
        self.stdout.write(f"  The tour is at {self.style.SUCCESS(url)}")
        if settings.DEBUG:  # A user with a known password, in a database that ends with the demo.
            User.objects.create_superuser(DEMO_USER, password=DEMO_USER)
            admin = self.style.SUCCESS(f"{url}admin/")
            self.stdout.write(
                f"  The admin is at {admin}: user {DEMO_USER}, password {DEMO_USER}, "
                f"times in {settings.TIME_ZONE}"
            )
        self.stdout.write("  Press Ctrl-C to stop everything.")
        self.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            while True:  # A signal just before one long sleep would be noticed only after it.
                scenario.check_interrupt()
                time.sleep(0.1)
        self.stdout.write("\n  Masters, database and server have been removed.")


def _is_unexpected(record: logging.LogRecord) -> bool:
    """Return False for a response by which the shop refuses a payment."""
    return getattr(record, "status_code", None) not in (409, 422, 423, 503)


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
