"""`manage.py lead NAME -- COMMAND`: run a program on one of many machines, the leader."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from redlock_django.exceptions import BadResource, InvalidRedlock, LockLost
from redlock_django.locking.leader import Leadership, Term, leader
from redlock_django.management.child_process import ChildProcess
from redlock_django.management.single_run import LOCK_LOST, UsageError, add_using


class Command(BaseCommand):
    """Exit status: the command's own, 128+n if signal n ended it, or one of those in `help`."""

    help = (
        "Wait until this process leads under NAME, then run COMMAND, and exit with its status. If "
        "this process loses the lead, COMMAND gets SIGTERM, and SIGKILL a quarter of "
        "the TTL later, before another process can lead; then it waits again, or with --once "
        f"exits with {LOCK_LOST}. If this process dies, Linux kills COMMAND. Only COMMAND writes "
        "to stdout."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("name", metavar="NAME", help="the resource that the leader locks")
        add("command", metavar="COMMAND", nargs="+", help="the program and its arguments, after --")
        add_using(parser)
        add("--ttl", type=float, metavar="SECONDS", help="the TTL of the lock (default: TTL)")
        add("--once", action="store_true", help=f"exit with {LOCK_LOST} if the lead is lost")

    def handle(self, *args: Any, **options: Any) -> None:
        """Campaign, run the command, and exit with its status; campaign again after a loss."""
        try:
            campaign = leader(options["name"], using=options["using"], ttl=options["ttl"])
        except (BadResource, InvalidRedlock, ValueError) as error:
            raise UsageError(str(error)) from None
        while True:
            child, status, lost = ChildProcess(options["command"], guarded=True), None, ""
            try:
                with child.forwarding_signals(), ExitStack() as stack:
                    term = _enter(campaign, stack)
                    status, lost = child.run_under(term._lock)
            except LockLost as error:
                # If COMMAND has ended by itself, it does not matter what became of the lead.
                lost = str(error) if status is None else lost
            if not lost or child.asked_to_end:
                if status:  # SystemExit instead of CommandError, because there is no message
                    sys.exit(status)
                return
            if options["once"]:
                raise CommandError(f"{lost}; the command was terminated", returncode=LOCK_LOST)
            self.stderr.write(f"{lost}; the command was terminated, and this process waits again")


def _enter(campaign: Leadership, stack: ExitStack) -> Term:
    try:
        return campaign.enter_in(stack)
    except (InvalidRedlock, ValueError) as error:
        raise UsageError(str(error)) from None
