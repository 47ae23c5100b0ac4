"""`manage.py redlock_init`: declare new masters trusted when a site is set up."""

from __future__ import annotations

import logging
import sys
import time
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from redlock_django.backends.redlock.backend import redlock_settings
from redlock_django.conf.settings import load
from redlock_django.engine.protocol.deployment import Deployment, ms
from redlock_django.engine.quorum import quorum
from redlock_django.exceptions import InvalidRedlock, StoreUnavailable
from redlock_django.locking.handler import locks
from redlock_django.wire.clock import clock
from redlock_django.wire.servers.address import Address
from redlock_django.wire.servers.handshake import Unfit
from redlock_django.wire.servers.trust_declaration import (
    MasterState,
    close,
    declare,
    drain_delay,
    known_fingerprint,
    left_with_a_majority,
    read_states,
)

logger = logging.getLogger("redlock_django")

RISK = (
    "If it stored locks before it restarted or was flushed, they are lost, and a resource that a "
    "client still holds can be acquired by another client."
)


class Command(BaseCommand):
    """Exit status 0: done, or nothing to do. 2: nothing was changed; the message says why."""

    help = (
        "Declare new masters trusted. A master that may have lost locks is not counted for "
        "RESTART_DELAY seconds; new ZooKeeper servers grant no locks for MAX_TTL seconds. Right "
        "after the installation no locks can have been lost, and this command records that."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--using", default="default", metavar="ALIAS", help="the alias in REDLOCK"
        )
        parser.add_argument(
            "--wait",
            type=float,
            default=0.0,
            metavar="SECONDS",
            help="how long to wait for masters that are just being started",
        )
        how = parser.add_mutually_exclusive_group()
        how.add_argument(
            "--force",
            action="append",
            default=[],
            metavar="MASTER",
            help="trust this master (host:port, or its number from 1) now, after a confirmation",
        )
        how.add_argument(
            "--reconfigure",
            action="store_true",
            help="use after changing MASTERS, MAX_TTL, MAX_CLOCK_SKEW or RESTART_DELAY: store the "
            "new values on all masters, which become trusted when all older locks have expired",
        )
        parser.add_argument(
            "--removed",
            action="append",
            default=[],
            metavar="URL",
            help="with --reconfigure: a master that was removed from MASTERS; needed if so many "
            "are removed that processes with the old settings would keep a majority",
        )

    def handle(
        self,
        *,
        using: str,
        wait: float,
        force: list[str],
        reconfigure: bool,
        removed: list[str],
        **_: Any,
    ) -> None:
        try:
            shards = redlock_settings(load(using).store)
        except InvalidRedlock as error:
            raise CommandError(str(error), returncode=2) from None
        if not shards:
            if force or reconfigure or removed:
                raise CommandError(
                    f"REDLOCK[{using!r}] has a store without masters: use redlock_init without "
                    "--force, --reconfigure and --removed.",
                    returncode=2,
                )
            self._declare_store(using, wait)
            return
        addresses = [address for shard in shards for address in shard.addresses]
        if not addresses:
            raise CommandError(
                f"The alias {using!r} has no masters to declare. Set MASTERS.", returncode=2
            )
        # All shards have the same numbers and differ in the names of their masters only.
        deployment, timeout = shards[0].deployment, shards[0].connect_timeout
        until = clock() + wait
        read = partial(
            read_states,
            deployment=deployment,
            tolerate=shards[0].tolerate,
            timeout=timeout,
            until=until,
        )
        states, faults = read(addresses)
        gone: list[MasterState] = []
        if removed:
            if not reconfigure:
                raise CommandError("--removed needs --reconfigure.", returncode=2)
            gone, more = read(_removed(removed))
            faults += more
        if force:
            names = [address.name for address in addresses]
            self._force(force, names, states, faults, deployment, timeout)
            return
        self._refuse(faults + _twins([*states, *gone]), after=wait if clock() >= until else 0.0)
        if reconfigure:
            self._refuse(_too_soon(states, deployment) + _not_closed([*states, *gone], deployment))
            # Close all masters first: no lock may be acquired under the new values on one master
            # while another one is still under the old values.
            self._close([*states, *gone], deployment, timeout)
            self._declare(states, deployment, timeout, "reconfigure")
            return
        known = known_fingerprint(states, deployment)
        other = [s for s in states if s.fingerprint not in ("", known)]
        self._refuse(
            [
                f"{s.address.name} belongs to a deployment with {s.fingerprint!r}, but this one is "
                f"{known!r}. After a planned change, use --reconfigure."
                for s in other
            ]
        )
        if all(s.trusted for s in states):
            self.stdout.write(f"All {len(states)} masters are already trusted.")
            return
        new = [s for s in states if not s.trusted]
        self._refuse([f"{s.address.name} is not new: it stores {s.key!r}" for s in new if s.key])
        for shard in shards:
            of_shard = [s for s in states if s.address in shard.addresses]
            self._trust_new(of_shard, deployment, timeout)

    def _declare_store(self, using: str, wait: float) -> None:
        """Declare servers new that are not masters, as soon as they answer."""
        until = clock() + wait
        while True:
            try:
                was_new = locks[using].backend.declare_new()
                break
            except StoreUnavailable as error:
                if clock() >= until:
                    self._refuse([str(error)], after=wait)
                time.sleep(0.1)  # an error may come at once
        if was_new is None:
            raise CommandError(
                f"REDLOCK[{using!r}] has a store without masters, so nothing must be declared. "
                "'manage.py redlock_status' shows whether its servers are trusted.",
                returncode=2,
            )
        for name in locks[using].backend.names:
            self.stdout.write(f"{name}: {'trusted now' if was_new else 'already trusted'}")

    def _trust_new(self, states: list[MasterState], deployment: Deployment, timeout: float) -> None:
        """Declare the masters of one group trusted that are not: now, or after RESTART_DELAY."""
        trusted = [s for s in states if s.trusted]
        new = [s for s in states if not s.trusted]
        # Each lock leaves a fence on a majority, for longer than any lock is held.
        used = next((s for s in trusted if s.key), None)
        if not trusted or (used is None and len(new) < quorum(len(states))):
            self._declare(new, deployment, timeout, "trust")
            return
        if used is not None:
            why = f"{used.address.name} stores {used.key!r}"
        else:
            why = f"{trusted[0].address.name} is already trusted"
        self.stderr.write(
            f"{why}, so locks have been acquired that the new masters may have forgotten. They are "
            "trusted when all such locks have expired. If they are certain to be new, use --force."
        )
        self._declare(new, deployment, timeout, "mark")

    def _force(
        self,
        wanted_names: list[str],
        names: list[str],
        states: list[MasterState],
        faults: list[str],
        deployment: Deployment,
        timeout: float,
    ) -> None:
        chosen = []
        for name in wanted_names:
            by_number = names[int(name) - 1 : int(name)] if name.isdigit() else ()
            wanted = (*by_number, name)
            found = [s for s in states if s.address.name in wanted]
            if not found:
                self._refuse(
                    [fault for fault in faults if fault.split(" ", 1)[0] in wanted]
                    or [f"There is no master {name!r}. The masters are: {', '.join(names)}."]
                )
            chosen += found
        if not sys.stdin.isatty():
            self._refuse(["--force needs a confirmation, but stdin is not a terminal"])
        for state in chosen:
            self.stderr.write(f"{state.address.name} will be trusted at once. {RISK}")
            self.stderr.write("Type 'yes' to continue: ", ending="")
            self.stderr.flush()
            if input() != "yes":
                raise CommandError("Nothing was changed.", returncode=2)
            logger.warning("redlock master %s: trusted by force", state.address.name)
        self._declare(chosen, deployment, timeout, "trust")

    def _declare(
        self, states: list[MasterState], deployment: Deployment, timeout: float, how: Any
    ) -> None:
        for state in states:
            try:
                wait = declare(state, deployment, timeout, how, after=states)
            except Unfit as error:
                raise CommandError(f"{state.address.name} {error}", returncode=2) from None
            when = "now" if wait <= 0 else f"in {wait:.1f} s"
            self.stdout.write(f"{state.address.name}: trusted {when}")

    def _close(self, states: list[MasterState], deployment: Deployment, timeout: float) -> None:
        for state in states:
            try:
                close(state, deployment, timeout)
            except Unfit as error:
                raise CommandError(
                    f"{state.address.name} {error}\nNo client counts the masters before it in "
                    "MASTERS until this command is run again.",
                    returncode=2,
                ) from None

    def _refuse(self, reasons: list[str], after: float = 0.0) -> None:
        if reasons:
            waited = f" after {after:g} s" if after else ""
            reason = "\n  ".join((f"Nothing was changed{waited}:", *reasons))
            raise CommandError(reason, returncode=2)


def _removed(urls: list[str]) -> list[Address]:
    addresses = []
    for number, url in enumerate(urls, 1):
        try:
            addresses.append(Address.from_url(url))
        except ValueError as error:
            raise CommandError(f"--removed: URL {number}: {error}", returncode=2) from None
    return addresses


def _not_closed(states: list[MasterState], deployment: Deployment) -> list[str]:
    """Return an error if processes with the old settings would keep a majority."""
    old = left_with_a_majority(states, deployment.fingerprint)
    if not old:
        return []
    problem = (
        f"Most masters of the deployment {old!r} are no longer in MASTERS. Processes with the old "
        "settings would go on to lock with them. Name the masters that were removed: --removed "
        "redis://..., once for each. Or change MASTERS in smaller steps."
    )
    return [problem]


def _too_soon(states: list[MasterState], deployment: Deployment) -> list[str]:
    """Return an error if clients would not wait until locks of the old masters have expired."""
    delay, change = drain_delay([s.fingerprint for s in states], deployment.fingerprint)
    if not change or ms(deployment.restart_delay) >= delay:
        return []
    # A client with a smaller delay would take the longer wait for a clock that was set back.
    problem = (
        "The list of masters changes, and some of them do not store the locks that are held now. "
        f"For this change RESTART_DELAY must be at least {delay / 1000:g} s; it is "
        f"{deployment.restart_delay:g} s."
    )
    return [problem]


def _twins(states: list[MasterState]) -> list[str]:
    seen: dict[str, str] = {}
    return [
        f"{s.address.name} is the same server as {first}"
        for s in states
        if (first := seen.setdefault(s.run_id, s.address.name)) != s.address.name
    ]
