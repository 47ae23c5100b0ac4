"""Forced releases from the admin: the selected locks, their release, and its messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from django.contrib import messages
from django.contrib.admin.models import DELETION, LogEntry
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from redlock_django.admin.held_locks.queryset import led_by, now_held
from redlock_django.admin.labels import age, duration, holder_cell, holder_process, masters_of
from redlock_django.backends.inspection.contract import Inspection
from redlock_django.engine.inspection.holders import Holding
from redlock_django.exceptions import BadResource
from redlock_django.locking.names import printable
from redlock_django.locking.services import locks
from redlock_django.models import HeldLock
from redlock_django.operate.forced_release import Freed, ReleaseOutcome, force_release

_MAX_NAMED = 10  # The most locks that one message names.


@dataclass(frozen=True, kw_only=True)
class SelectedLock:
    """A lock that was shown. If it is no longer held, `lock` is None and `instead` says why."""

    id: str
    fingerprint: str
    resource: str
    lock: HeldLock | None = None
    instead: str = ""

    @property
    def owner(self) -> str:
        """The holder's process, and the path and user of its request."""
        return holder_cell(self.lock.holding.holder) if self.lock else ""

    @property
    def age(self) -> str:
        """How long the lock has been held."""
        return (age(self.lock.since) or _("unknown")) if self.lock else ""

    @property
    def left(self) -> str:
        """After how long the lock expires unless it is renewed."""
        return duration(self.lock.ttl) if self.lock else ""

    @property
    def masters(self) -> SafeString | str:
        """How many masters store the lock."""
        holding = self.lock.holding if self.lock else None
        return masters_of(holding) if holding else ""


def selected_locks(ids: Iterable[str]) -> list[SelectedLock]:
    """Look up the locks with these ids on the masters; skip invalid ids."""
    parts = list(_parts(ids))
    wanted: dict[str, list[str]] = defaultdict(list)
    for _id, _fingerprint, alias, resource in parts:
        wanted[alias].append(resource)
    held: dict[str, Mapping[str, Holding]] = {
        alias: now_held(alias, resources) for alias, resources in wanted.items()
    }
    return [
        _selected_lock(lock_id, fingerprint, alias, resource, held[alias].get(resource))
        for lock_id, fingerprint, alias, resource in parts
    ]


def _selected_lock(
    lock_id: str, fingerprint: str, alias: str, resource: str, holding: Holding | None
) -> SelectedLock:
    own = led_by(fingerprint, holding) if holding is not None else None
    return SelectedLock(
        id=lock_id,
        fingerprint=fingerprint,
        resource=printable(resource),
        lock=HeldLock.of(alias, own) if own is not None else None,
        instead="" if own is not None else replacement_text(holding),
    )


def rival_locks(alias: str, holding: Holding) -> list[SelectedLock]:
    """Return the locks of the other holders of a resource."""
    prints = dict.fromkeys(sighting.fingerprint for sighting in holding.rivals)
    others = [own for own in (led_by(one, holding) for one in prints) if own is not None]
    return [
        SelectedLock(
            id=HeldLock.of(alias, own).id,
            fingerprint=own.fingerprint,
            resource=printable(own.resource),
            lock=HeldLock.of(alias, own),
        )
        for own in others
    ]


def replacement_text(holding: Holding | None) -> str:
    """Return a sentence that says why a lock is no longer held, and who holds the resource."""
    if holding is None:
        return _("It is no longer held.")
    where = holder_process(holding.holder) or _("another client")
    return _("It has been released, and was acquired by %(holder)s (lock %(lock)s).") % {
        "holder": where,
        "lock": holding.fingerprint,
    }


def release_locks(request: HttpRequest, ids: Iterable[str]) -> list[Freed]:
    """Release the locks with these ids, and record each release in the admin log."""
    user = request.user
    assert user.pk is not None  # The admin requires a login.
    by = user.get_username()
    done = []
    with ExitStack() as stack:
        inspections: dict[str, Inspection] = {}
        for lock_id, fingerprint, alias, resource in _parts(ids):
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
                    queryset=[HeldLock(id=lock_id, resource=resource)],
                    action_flag=DELETION,
                    change_message=_("Released by force: %s") % _on_each(freed.masters),
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
            text += " " + _("Result on each server: %s.") % _on_each(every[0].masters)
        messages.add_message(request, level, text)


def _message(outcome: ReleaseOutcome, every: list[Freed]) -> tuple[int, str]:
    # No message begins with a name, because Django capitalizes the first letter.
    values = {"names": _names(every), "lock": every[0].now}
    count = len(every)
    match outcome:
        case ReleaseOutcome.RELEASED:
            said = ngettext("Released: %(names)s.", "Released: %(names)s.", count)
            return messages.SUCCESS, said % values
        case ReleaseOutcome.NOT_HELD:
            said = ngettext(
                "Nothing to release: %(names)s is no longer held.",
                "Nothing to release: %(names)s are no longer held.",
                count,
            )
            return messages.WARNING, said % values
        case ReleaseOutcome.CHANGED:
            said = ngettext(
                "Not released: %(names)s. It has been acquired again since it was shown (lock "
                "%(lock)s).",
                "Not released: %(names)s. They have been acquired again since they were shown "
                "(lock %(lock)s).",
                count,
            )
            return messages.WARNING, said % values
        case _:
            said = ngettext(
                "Too few servers answered: %(names)s may still be held.",
                "Too few servers answered: %(names)s may still be held.",
                count,
            )
            return messages.ERROR, said % values


def _names(every: list[Freed]) -> str:
    names = ", ".join(printable(freed.resource) for freed in every[:_MAX_NAMED])
    more = len(every) - _MAX_NAMED
    return names if more <= 0 else _("%(names)s and %(more)s more") % {"names": names, "more": more}


def _on_each(said: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {word}" for name, word in said.items())


def _parts(ids: Iterable[str]) -> Iterator[tuple[str, str, str, str]]:
    for lock_id in dict.fromkeys(ids):
        try:
            fingerprint, alias, resource = HeldLock.parts(lock_id)
        except ValueError:
            continue
        if alias in locks:
            yield lock_id, fingerprint, alias, resource
