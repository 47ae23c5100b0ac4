"""`manage.py release_lock NAME`: release a lock of another client by force."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import CommandError, CommandParser

from redlock_django.engine.inspection.holders import Holding
from redlock_django.engine.protocol.slots import MOST_SLOTS, slot_resource
from redlock_django.locking.names import check_resource, printable
from redlock_django.management.operator_command import (
    OperatorCommand,
    add_noinput,
    holder_summary,
    iso,
    operator_name,
)
from redlock_django.management.single_run import BAD_ARGUMENTS, NO_QUORUM, UsageError
from redlock_django.operate.forced_release import Freed, ReleaseOutcome, force_release
from redlock_django.operate.health import server_word
from redlock_django.operate.inspection import HeldLocks, nearest_held, who_holds

NOT_RELEASED = 1
RISK = (
    "The holder is not stopped. It notices the release at its next renewal, after a third of its "
    "TTL, or only when the TTL is over if it does not renew the lock; until then, only a fencing "
    "token protects against its writes."
)


class Command(OperatorCommand):
    """Exit status 0: released. 1: not held, changed, or declined. 2: usage. 3: no quorum."""

    help = (
        "Release a lock that another client holds. The command shows the lock and asks for "
        "confirmation. It releases the lock that was shown, not one that was acquired later. Exit "
        f"status: 0 released; {NOT_RELEASED} not held, held by another lock now, or declined; "
        f"{BAD_ARGUMENTS} wrong arguments or settings; {NO_QUORUM} too few servers answered (the "
        "lock may still be held)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        add("name", metavar="NAME", help="the resource of the lock")
        add(
            "--holder",
            type=_fingerprint,
            metavar="LOCK",
            help="release only the lock with this fingerprint, which list_locks shows as LOCK",
        )
        add(
            "--slot",
            type=int,
            metavar="N",
            help="release this slot of a NAME that several clients hold",
        )
        add_noinput(parser, also="; requires --holder")

    def handle(self, *args: Any, **options: Any) -> None:
        """Show the lock, ask for confirmation, release it and write the result."""
        name, using = check_resource(options["name"]), options["using"]
        wanted, slot = options["holder"], options["slot"]
        if not (options["interactive"] or wanted):
            problem = "--noinput requires --holder LOCK, which list_locks shows as LOCK."
            raise UsageError(problem)
        if slot is not None and not 0 <= slot < MOST_SLOTS:
            problem = f"--slot must be a number from 0 to {MOST_SLOTS - 1}, got {slot}."
            raise UsageError(problem)
        page = who_holds(name, using=using, slots=True)
        held = [one for one in page.locks if slot in (None, one.slot)]
        shown = _chosen(held, wanted)
        if len(shown) > 1:
            self.warn_of_silent(page.silent)  # otherwise the table of the results names them
            raise UsageError(_which_slot(name, shown, page))
        if shown and options["interactive"] and not self._is_confirmed(shown[0], using):
            raise CommandError(f"{shown[0].label} was not released.", returncode=NOT_RELEASED)
        resource = name if slot is None else slot_resource(name, slot)
        for one in (*shown, *held)[:1]:
            resource, wanted = one.resource, wanted or one.fingerprint
        # Never None, which would release a lock that was not shown.
        freed = force_release(resource, by=operator_name(), fingerprint=wanted or "", using=using)
        self.write_table((server_word(using).upper(), "RESULT"), freed.masters.items())
        if freed.outcome is ReleaseOutcome.RELEASED:
            self.stderr.write(f"{freed.label}: lock {freed.fingerprint} was released.")
            return
        status = NO_QUORUM if freed.outcome is ReleaseOutcome.NO_QUORUM else NOT_RELEASED
        raise CommandError(_problem(freed), returncode=status)

    def _is_confirmed(self, shown: Holding, using: str) -> bool:
        """Show the lock and ask for confirmation on stderr, because stdout is for data."""
        left = "no expiry" if shown.ttl is None else f"{shown.ttl:.1f} s left"
        self.warn(f"{shown.label} is held by {holder_summary(shown.holder)}")
        self.warn(
            f"  lock {shown.fingerprint} ({shown.state.value}), since {iso(shown.since) or '?'}, "
            f"{left}, on {len(shown.leading)} of {len(shown.servers)} {server_word(using)}s"
        )
        return self.confirm(f"{RISK}\nType 'yes' to release it: ")


def _chosen(held: list[Holding], fingerprint: str | None) -> list[Holding]:
    """Return the locks that are meant: the one with the fingerprint, or the first of each slot."""
    if fingerprint is None:
        return [one.by_holder()[0] for one in held]
    return [by for one in held for by in one.by_holder() if by.fingerprint == fingerprint]


def _which_slot(name: str, held: list[Holding], page: HeldLocks) -> str:
    """Return the error that names the holders, of whom the operator must choose."""
    lines = [f"{name} has several holders: {page.slots[name]} slots are held."]
    for one in held:
        holder = f"lock {one.fingerprint} of {holder_summary(one.holder)}"
        lines.append(f"  slot {one.slot}: {holder}")
    return "\n".join([*lines, f"Add --slot {held[0].slot} (or another of them)."])


def _problem(freed: Freed) -> str:
    if freed.outcome is ReleaseOutcome.CHANGED:
        return f"{freed.label} was not released: it is now held as lock {freed.now}."
    if freed.outcome is ReleaseOutcome.NO_QUORUM:
        servers = f"{server_word(freed.using)}s"
        return f"Too few {servers} answered: {freed.label} may still be held."
    nearest = ", ".join(map(printable, nearest_held(freed.name, freed.using)))
    similar = f" Similar resources that are held: {nearest}" if nearest else ""
    return f"{freed.label} is not held.{similar}"


def _fingerprint(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{8}", text):
        raise ArgumentTypeError("must be the 8 hex digits that list_locks shows as LOCK")
    return text
