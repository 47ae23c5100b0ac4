"""`manage.py redlock_init`: declare new masters trusted when a site is set up."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandParser

from redlock_django.backends.redis.settings import RedlockSettings
from redlock_django.conf.settings import load
from redlock_django.engine.protocol.deployment import Deployment, ms
from redlock_django.engine.quorum import quorum
from redlock_django.exceptions import StoreUnavailable
from redlock_django.locking.services import locks
from redlock_django.management.operator_command import OperatorCommand
from redlock_django.management.single_run import UsageError
from redlock_django.wire.clock import clock
from redlock_django.wire.servers.address import Address
from redlock_django.wire.servers.trust import Unfit
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
    "If it has forgotten locks, as after a crash or without persistence, a resource that a client "
    "still holds can be acquired by another client."
)


class Command(OperatorCommand):
    """Exit status 0: done, or nothing to do. 2: nothing was changed; the message has the reason."""

    help = (
        "Declare new masters trusted. A master that may have lost locks is not counted for "
        "RESTART_DELAY seconds; new ZooKeeper servers grant no locks for MAX_TTL seconds. Right "
        "after the installation no locks can have been lost, and this command records that."
    )
    _is_changed = False
    """True when a marker of a master has been written."""

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        add(
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
            help="trust this master (host:port) now, after a confirmation",
        )
        how.add_argument(
            "--reconfigure",
            action="store_true",
            help="use after changing MASTERS, PROFILE, MAX_TTL, MAX_CLOCK_SKEW or RESTART_DELAY: "
            "store the new values on all masters, which become trusted when all older locks have "
            "expired",
        )
        add(
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
        """Run the mode that the arguments select: one of the four methods that follow."""
        store = load(using).store
        if not isinstance(store, RedlockSettings):
            if force or reconfigure or removed:
                raise UsageError(
                    f"REDLOCK[{using!r}] has a store without masters: use redlock_init without "
                    "--force, --reconfigure and --removed."
                )
            self._declare_store(using, wait)
            return
        if removed and not reconfigure:
            raise UsageError("--removed needs --reconfigure.")
        masters = Masters(store, wait)
        if not masters.addresses:
            raise UsageError(f"The alias {using!r} has no masters to declare. Set MASTERS.")
        if force:
            self._force(masters, force)
        elif reconfigure:
            self._reconfigure(masters, _addresses_of(removed))
        else:
            self._declare_new(masters)

    def _declare_store(self, using: str, wait: float) -> None:
        """Declare servers new that are not masters, as soon as they answer."""
        until = clock() + wait
        while True:
            try:
                was_new = locks[using].backend.declare_new()
                break
            except StoreUnavailable as error:
                if clock() >= until:
                    _refuse([str(error)], after=wait)
                time.sleep(0.1)  # an error may come at once
        if was_new is None:
            raise UsageError(
                f"REDLOCK[{using!r}] has a store without masters, so nothing must be declared. "
                "'manage.py redlock_status' shows whether its servers are trusted."
            )
        for name in locks[using].settings.store.names:
            self.stdout.write(f"{name}: {'trusted now' if was_new else 'already trusted'}")

    def _declare_new(self, masters: Masters) -> None:
        """Declare new masters trusted, now or after RESTART_DELAY; refuse one that is not new."""
        states = masters.read()
        known = known_fingerprint(states, masters.deployment)
        _refuse([reason for state in states if (reason := _not_new(state, known))])
        trusted = [s for s in states if s.trusted]
        new = [s for s in states if not s.trusted]
        if not new:
            self.stdout.write(f"All {len(states)} masters are already trusted.")
            return
        # Each lock leaves a fence on a majority, for longer than any lock is held.
        used = next((s for s in trusted if s.key), None)
        if not trusted or (used is None and len(new) < quorum(len(states))):
            self._declare(masters, new, "trust")
            return
        if used is not None:
            why = f"{used.address.name} stores {used.key!r}"
        else:
            why = f"{trusted[0].address.name} is already trusted"
        self.stderr.write(
            f"{why}, so locks have been acquired that the new masters may have forgotten. They are "
            "trusted when all such locks have expired. If they are certain to be new, use --force."
        )
        self._declare(masters, new, "mark")

    def _force(self, masters: Masters, wanted: list[str]) -> None:
        """Declare the named masters trusted now, after a confirmation of each."""
        chosen = masters.chosen(wanted)
        for state in chosen:
            risk = f"{state.address.name} will be trusted at once. {RISK}"
            if not self.confirm(
                f"{risk}\nType 'yes' to continue: ", otherwise=" Nothing was changed."
            ):
                raise UsageError("Nothing was changed.")
        for state in chosen:
            self._declare(masters, [state], "trust")
            logger.warning("redlock master %s: trusted by force", state.address.name)

    def _reconfigure(self, masters: Masters, removed: list[Address]) -> None:
        """Store the new values on all masters, which are trusted when older locks have expired."""
        names = {address.name for address in masters.addresses}
        _refuse(
            [
                f"--removed: {address.name} is still in MASTERS. Name only masters that left it."
                for address in removed
                if address.name in names
            ]
        )
        every = masters.read(removed)
        states = every[: len(masters.addresses)]
        deployment = masters.deployment
        _refuse(_too_soon(states, deployment) + _not_closed(every, deployment))
        # Close all masters first: no lock may be acquired under the new values on one master
        # while another one is still under the old values.
        for state in every:
            try:
                close(state, deployment, masters.timeout)
            except Unfit as error:
                raise UsageError(
                    f"{state.address.name} {error}\nNo client counts the masters before it in "
                    "MASTERS until this command is run again."
                ) from None
            self._is_changed = True
        self._declare(masters, states, "reconfigure")

    def _declare(self, masters: Masters, states: list[MasterState], how: Any) -> None:
        """Write the markers of masters, and print when each of them is trusted."""
        for state in states:
            try:
                wait = declare(state, masters.deployment, masters.timeout, how, after=states)
            except Unfit as error:
                reason = f"{state.address.name} {error}"
                if not self._is_changed:
                    _refuse([reason])
                raise UsageError(
                    f"{reason}\nRun this command again when the master is repaired: it goes on "
                    "with the masters that are not declared yet."
                ) from None
            self._is_changed = True
            when = "now" if wait <= 0 else f"in {wait:.1f} s"
            self.stdout.write(f"{state.address.name}: trusted {when}")


class Masters:
    """The masters of an alias, whose states are read for up to `wait` seconds."""

    def __init__(self, settings: RedlockSettings, wait: float) -> None:
        self.addresses = settings.addresses
        self.deployment = settings.deployment
        self.timeout = settings.connect_timeout
        self._tolerate = settings.tolerate
        self._wait = wait
        self._until = clock() + wait

    def read(self, removed: list[Address] | None = None) -> list[MasterState]:
        """Return the states of all masters, then those of `removed`; refuse if one has a fault."""
        states, faults = self._read([*self.addresses, *(removed or ())])
        after = self._wait if clock() >= self._until else 0.0
        _refuse(faults + _twins(states), after=after)
        return states

    def chosen(self, wanted: list[str]) -> list[MasterState]:
        """Return the states of the masters with these names; others may be down."""
        states, faults = self._read(self.addresses)
        by_name = {state.address.name: state for state in states}
        if missing := [name for name in wanted if name not in by_name]:
            names = ", ".join(address.name for address in self.addresses)
            unknown = [
                f"There is no master {name!r}. The masters are: {names}." for name in missing
            ]
            _refuse([one for one in faults if one.split(" ", 1)[0] in missing] or unknown)
        return [by_name[name] for name in wanted]

    def _read(self, addresses: Sequence[Address]) -> tuple[list[MasterState], list[str]]:
        return read_states(addresses, self.deployment, self._tolerate, self.timeout, self._until)


def _not_new(state: MasterState, known: str) -> str:
    """Return why a master is not new to clients with the fingerprint `known`; "" if it is."""
    name = state.address.name
    if state.fingerprint not in ("", known):
        return (
            f"{name} belongs to a deployment with {state.fingerprint!r}, but this one is "
            f"{known!r}. Every client must have the same MASTERS, PROFILE, MAX_TTL, MAX_CLOCK_SKEW "
            "and RESTART_DELAY. After a planned change, use --reconfigure."
        )
    if state.key and not state.trusted:
        return (
            f"{name} is not new: it stores {state.key!r}. 'manage.py redlock_status' shows when it "
            "is trusted; --force trusts it at once."
        )
    return ""


def _refuse(reasons: list[str], after: float = 0.0) -> None:
    """Raise CommandError if there are reasons to change nothing."""
    if reasons:
        waited = f" after {after:g} s" if after else ""
        reason = "\n  ".join((f"Nothing was changed{waited}:", *reasons))
        raise UsageError(reason)


def _addresses_of(urls: list[str]) -> list[Address]:
    """Return the addresses of --removed, each once: they are counted."""
    addresses: dict[str, Address] = {}
    for number, url in enumerate(urls, 1):
        try:
            address = Address.from_url(url)
        except ValueError as error:
            raise UsageError(f"--removed: URL {number}: {error}") from None
        addresses[address.name] = address
    return list(addresses.values())


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
    """Return errors if clients would not wait until locks of before have expired.

    Those are locks that masters which are added do not store, or that a master may have forgotten.
    """
    delay, change = drain_delay([s.fingerprint for s in states], deployment.fingerprint)
    if ms(deployment.restart_delay) >= delay:
        return []
    # A client with a smaller delay would take the longer wait for a clock that was set back.
    if not change:
        return [
            f"{s.address.name} is not trusted yet, because it may have forgotten locks, and with "
            f"RESTART_DELAY of {deployment.restart_delay:g} s it would be trusted too early. Run "
            "this again when 'manage.py redlock_status', with the old settings, shows it as trusted"
            for s in states
            if s.fingerprint and not s.trusted
        ]
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
