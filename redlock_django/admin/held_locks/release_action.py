"""Forced releases from the admin: the release of locks that were shown, and its messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack

from django.contrib import messages
from django.contrib.admin.models import DELETION, LogEntry
from django.http import HttpRequest

from redlock_django.admin.held_locks.shown_locks import parts_of
from redlock_django.admin.labels import lock_name
from redlock_django.backends.inspection.contract import Inspection
from redlock_django.exceptions import BadResource
from redlock_django.locking.services import locks
from redlock_django.models import HeldLock
from redlock_django.operate.forced_release import Freed, ReleaseOutcome, force_release

_MAX_NAMED = 10  # The most locks that one message names.


def release_locks(request: HttpRequest, ids: Iterable[str]) -> list[Freed]:
    """Release the locks with these ids, and record each release in the admin log."""
    user = request.user
    assert user.pk is not None  # The admin requires a login.
    by = user.get_username()
    done = []
    with ExitStack() as stack:
        inspections: dict[str, Inspection] = {}
        for lock_id, fingerprint, alias, resource in parts_of(ids):
            if alias not in inspections:
                inspections[alias] = stack.enter_context(locks[alias].backend.inspect())
            try:
                freed = force_release(
                    resource,
                    by=by,
                    fingerprint=fingerprint,
                    using=alias,
                    inspection=inspections[alias],
                )
            except BadResource as error:
                messages.error(request, str(error))
                continue
            done.append(freed)
            if freed.fingerprint:
                LogEntry.objects.log_actions(
                    user_id=user.pk,
                    queryset=[HeldLock(id=lock_id, resource=freed.label)],
                    action_flag=DELETION,
                    change_message=f"Released by force: {_on_each(freed.masters)}",
                )
    return done


def add_messages(request: HttpRequest, done: Iterable[Freed]) -> None:
    """Add messages about the results, one for all locks with the same result."""
    alike: dict[tuple[ReleaseOutcome, str], list[Freed]] = defaultdict(list)
    for freed in done:
        # The lock that holds a resource now differs from lock to lock.
        alike[freed.outcome, freed.now + _on_each(freed.masters)].append(freed)
    for (outcome, _key), every in alike.items():
        level, text = _message(outcome, every)
        if every[0].masters:
            text += f" Result on each server: {_on_each(every[0].masters)}."
        messages.add_message(request, level, text)


def _message(outcome: ReleaseOutcome, every: list[Freed]) -> tuple[int, str]:
    # No message begins with a name, because Django capitalizes the first letter.
    names, is_one = _names(every), len(every) == 1
    match outcome:
        case ReleaseOutcome.RELEASED:
            return messages.SUCCESS, f"Released: {names}."
        case ReleaseOutcome.NOT_HELD:
            no_longer = "is no longer held" if is_one else "are no longer held"
            return messages.WARNING, f"Nothing to release: {names} {no_longer}."
        case ReleaseOutcome.CHANGED:
            it_has, it_was = ("It has", "it was") if is_one else ("They have", "they were")
            return messages.WARNING, (
                f"Not released: {names}. {it_has} been acquired again since {it_was} shown "
                f"(lock {every[0].now})."
            )
        case _:
            return messages.ERROR, f"Too few servers answered: {names} may still be held."


def _names(every: list[Freed]) -> str:
    names = ", ".join(lock_name(freed.resource, freed.holder) for freed in every[:_MAX_NAMED])
    more = len(every) - _MAX_NAMED
    return names if more <= 0 else f"{names} and {more} more"


def _on_each(answers: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {word}" for name, word in answers.items())
