"""`manage.py redlock_init`: declare fresh masters trusted, once, when a site is set up."""

from __future__ import annotations

import logging
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from redlock_django.conf.settings import load
from redlock_django.engine.commands import Deployment, ms
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.handler import deployments_of
from redlock_django.wire.declare import Standing, close, declare, drained, read_standing
from redlock_django.wire.join import Unfit

logger = logging.getLogger("redlock_django")

RISK = (
    "If it held locks before it restarted or was flushed, it has forgotten them, and whoever "
    "still holds one shares it with the next who asks."
)


class Command(BaseCommand):
    """Exit status 0: done, or nothing to do. 2: nothing was changed, and why."""

    help = (
        "Declare fresh masters trusted. A master that may have forgotten locks is not counted "
        "for RESTART_DELAY seconds; right after the first installation nothing can have been "
        "forgotten, and this command says so to the masters."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--using", default="default", metavar="ALIAS", help="the alias in REDLOCK"
        )
        how = parser.add_mutually_exclusive_group()
        how.add_argument(
            "--force",
            action="append",
            default=[],
            metavar="MASTER",
            help="trust this one master (host:port, or its number from 1) now, after a question",
        )
        how.add_argument(
            "--reconfigure",
            action="store_true",
            help="after masters were added or removed, or MAX_TTL, MAX_CLOCK_SKEW or "
            "RESTART_DELAY changed: write the new numbers on all masters, which are trusted "
            "when all older locks have run out",
        )

    def handle(self, *, using: str, force: list[str], reconfigure: bool, **_: Any) -> None:
        try:
            options = load(using)
        except InvalidRedlock as error:
            raise CommandError(str(error), returncode=2) from None
        if not options.addresses:
            raise CommandError(f"{using!r} has no masters to declare.", returncode=2)
        deployment = deployments_of(options)[0]  # what they all have in common, beside their names
        standings, faults = [], []
        for address in options.addresses:
            try:
                standings.append(
                    read_standing(address, deployment, options.tolerate, options.connect_timeout)
                )
            except Unfit as error:
                faults.append(f"{address.name} {error}")
        if force:
            names = [address.name for address in options.addresses]
            self._force(force, names, standings, faults, deployment, options.connect_timeout)
            return
        self._refuse(faults + _twins(standings))
        if reconfigure:
            self._refuse(_too_soon(standings, deployment))
            # All of them first: a lock must not be had by the new rules on one master while
            # it still is by the old ones on another.
            self._close(standings, deployment, options.connect_timeout)
            self._declare(standings, deployment, options.connect_timeout, "reconfigure")
            return
        other = [s for s in standings if s.fingerprint not in ("", deployment.fingerprint)]
        self._refuse(
            [
                f"{s.address.name} belongs to a deployment with {s.fingerprint!r}, this one is "
                f"{deployment.fingerprint!r}; after a planned change use --reconfigure"
                for s in other
            ]
        )
        if all(s.trusted for s in standings):
            self.stdout.write(f"All {len(standings)} masters are trusted already.")
            return
        self._refuse(
            [f"{s.address.name} is trusted already" for s in standings if s.trusted]
            + [f"{s.address.name} is not fresh: it holds {s.key!r}" for s in standings if s.key]
        )
        self._declare(standings, deployment, options.connect_timeout, "trust")

    def _force(
        self,
        wanted_names: list[str],
        names: list[str],
        standings: list[Standing],
        faults: list[str],
        deployment: Deployment,
        timeout: float,
    ) -> None:
        chosen = []
        for name in wanted_names:
            by_number = names[int(name) - 1 : int(name)] if name.isdigit() else ()
            wanted = (*by_number, name)
            found = [s for s in standings if s.address.name in wanted]
            if not found:
                self._refuse(
                    [fault for fault in faults if fault.split(" ", 1)[0] in wanted]
                    or [f"there is no master {name!r}; there is: {', '.join(names)}"]
                )
            chosen += found
        if not sys.stdin.isatty():
            self._refuse(["--force asks a person, and there is no terminal to ask on"])
        for standing in chosen:
            self.stderr.write(f"{standing.address.name} will be trusted at once. {RISK}")
            self.stderr.write("Type 'yes' to go on: ", ending="")
            self.stderr.flush()
            if input() != "yes":
                raise CommandError("Nothing was changed.", returncode=2)
            logger.warning("redlock master %s: trusted by force", standing.address.name)
        self._declare(chosen, deployment, timeout, "trust")

    def _declare(
        self, standings: list[Standing], deployment: Deployment, timeout: float, how: Any
    ) -> None:
        for standing in standings:
            try:
                wait = declare(standing, deployment, timeout, how, after=standings)
            except Unfit as error:
                raise CommandError(f"{standing.address.name} {error}", returncode=2) from None
            when = "now" if wait <= 0 else f"in {wait:.1f} s"
            self.stdout.write(f"{standing.address.name}: trusted {when}")

    def _close(self, standings: list[Standing], deployment: Deployment, timeout: float) -> None:
        for standing in standings:
            try:
                close(standing, deployment, timeout)
            except Unfit as error:
                raise CommandError(
                    f"{standing.address.name} {error}\nThe masters before it are not counted by "
                    "any client until this command is run again.",
                    returncode=2,
                ) from None

    def _refuse(self, reasons: list[str]) -> None:
        if reasons:
            raise CommandError("Nothing was changed:\n  " + "\n  ".join(reasons), returncode=2)


def _too_soon(standings: list[Standing], deployment: Deployment) -> list[str]:
    """Say so where clients would not wait until the locks of the old masters have run out."""
    delay, change = drained([s.fingerprint for s in standings], deployment.fingerprint)
    if not change or ms(deployment.restart_delay) >= delay:
        return []
    # Who joins with a smaller delay would take the longer wait for a clock that has gone back.
    problem = (
        "the masters change, and some of them do not know of locks that are held now, but "
        f"RESTART_DELAY is {deployment.restart_delay:g} s: for this change it must be at least "
        f"{delay / 1000:g} s"
    )
    return [problem]


def _twins(standings: list[Standing]) -> list[str]:
    seen: dict[str, str] = {}
    return [
        f"{s.address.name} is the same server as {first}"
        for s in standings
        if (first := seen.setdefault(s.run_id, s.address.name)) != s.address.name
    ]
