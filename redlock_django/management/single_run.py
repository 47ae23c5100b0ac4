"""`SingleRunMixin`: a management command of which only one runs at a time, on all machines."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError

from redlock_django.exceptions import (
    BadResource,
    InvalidRedlock,
    QuorumUnreachable,
    ResourceLocked,
)
from redlock_django.locking.lock import Lock, lock
from redlock_django.web.hold import OnConflict

BAD_ARGUMENTS = 2
NO_QUORUM = 3
LOCK_LOST = 74
LOCK_HELD = 75
"""Exit status where somebody else holds the lock: sysexits.h's EX_TEMPFAIL, "try again"."""


class SingleRunMixin(BaseCommand):
    """Base for a command of which only one runs at a time: `class Command(SingleRunMixin)`.

    `lock_key` is the resource, "command:NAME" if left out, and `lock_using`, `lock_ttl` and
    `lock_wait` are arguments for `lock()`. While it is held elsewhere, the command ends with
    status 75 and a line that says so, or quietly with 0 where `on_conflict` is "skip"; without
    a quorum it ends with 3. `self.held` is the lock, for `ensure_held()` and `fence`.
    """

    lock_key: ClassVar[str] = ""
    lock_using: ClassVar[str] = "default"
    lock_ttl: ClassVar[float | timedelta | None] = None
    lock_wait: ClassVar[float | timedelta | None] = None
    on_conflict: ClassVar[OnConflict] = "raise"
    held: Lock

    def get_lock_key(self, **options: Any) -> str:
        """Give the resource for these options: override it to run once for each of something."""
        return self.lock_key or f"command:{type(self).__module__.rpartition('.')[2]}"

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command under its lock."""
        key = self.get_lock_key(**options)
        skip = self.on_conflict == "skip"
        with ExitStack() as stack:
            held = take(
                stack,
                key,
                skip=skip,
                using=self.lock_using,
                ttl=self.lock_ttl,
                wait=self.lock_wait,
            )
            if held is None:
                return None
            self.held = held
            return super().execute(*args, **options)


def take(stack: ExitStack, key: str, *, skip: bool, **deployment: Any) -> Lock | None:
    """Take a lock until `stack` is left; None if it is held elsewhere and `skip` says so.

    Raises CommandError with the exit status otherwise.
    """
    try:
        return stack.enter_context(lock(key, **deployment))
    except ResourceLocked as error:
        if skip:
            return None
        problem, status = str(error), LOCK_HELD
    except QuorumUnreachable as error:
        problem, status = str(error), NO_QUORUM
    except (BadResource, InvalidRedlock, ValueError) as error:
        problem, status = str(error), BAD_ARGUMENTS
    raise CommandError(problem, returncode=status)
