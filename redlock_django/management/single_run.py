"""`SingleRunMixin`: management commands that run only once at a time across all machines."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser

from redlock_django.exceptions import (
    BadResource,
    InvalidRedlock,
    LockLost,
    ResourceLocked,
    StoreUnavailable,
)
from redlock_django.locking.lock import Lock, lock
from redlock_django.web.hold import OnConflict

BAD_ARGUMENTS = 2
NO_QUORUM = 3
LOCK_LOST = 74
LOCK_HELD = 75
"""The exit status if another client holds the lock: EX_TEMPFAIL ("try again") of sysexits.h."""


class UsageError(CommandError):
    """Wrong arguments or settings: exit status 2."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, returncode=BAD_ARGUMENTS)


def add_using(parser: CommandParser) -> None:
    """Add the argument `--using` of all commands."""
    parser.add_argument("--using", default="default", metavar="ALIAS", help="the alias in REDLOCK")


class SingleRunMixin(BaseCommand):
    """Base for commands that run only once at a time: `class Command(SingleRunMixin)`.

    `lock_key` is the resource and defaults to "command:NAME". `lock_using`, `lock_ttl`,
    `lock_wait`, `lock_min_hold` and `lock_limit` are arguments of `lock()`. If another client holds
    the lock, the command exits with status 75 and a message, or silently with 0 if `on_conflict` is
    "skip". Without a quorum it exits with 3, and with 74 if the lock was lost. `self.held` is the
    lock, for `ensure_held()`, `fence` and `slot`.
    """

    lock_key: ClassVar[str] = ""
    lock_using: ClassVar[str] = "default"
    lock_ttl: ClassVar[float | timedelta | None] = None
    lock_wait: ClassVar[float | timedelta | None] = None
    lock_min_hold: ClassVar[float | timedelta | None] = None
    lock_limit: ClassVar[int | None] = None
    on_conflict: ClassVar[OnConflict] = "raise"
    held: Lock

    def get_lock_key(self, **options: Any) -> str:
        """Return the resource for these options. Override it to lock per argument, for example."""
        return self.lock_key or f"command:{type(self).__module__.rpartition('.')[2]}"

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command while holding its lock."""
        try:
            with ExitStack() as stack:
                held = enter_lock(
                    stack,
                    self.get_lock_key(**options),
                    skip=self.on_conflict == "skip",
                    using=self.lock_using,
                    ttl=self.lock_ttl,
                    wait=self.lock_wait,
                    min_hold=self.lock_min_hold,
                    limit=self.lock_limit,
                )
                if held is None:
                    return None
                self.held = held
                return super().execute(*args, **options)
        except LockLost as error:
            raise CommandError(str(error), returncode=LOCK_LOST) from error


def enter_lock(stack: ExitStack, key: str, *, skip: bool, **options: Any) -> Lock | None:
    """Acquire a lock and release it when `stack` closes.

    Returns None if another client holds the lock and `skip` is true. Raises CommandError with the
    exit status if the lock cannot be acquired for another reason.
    """
    try:
        return lock(key, **options).enter_in(stack)
    except ResourceLocked as error:
        if skip:
            return None
        problem, status = str(error), LOCK_HELD
    except StoreUnavailable as error:
        problem, status = str(error), NO_QUORUM
    except (BadResource, InvalidRedlock, ValueError) as error:
        raise UsageError(str(error)) from None
    raise CommandError(problem, returncode=status)
