"""The open page of an editor: a lock with a TTL, whose holder is that page and not a process.

It is a hint for people: what is saved is decided by the versions of rows alone. The lock is handed
on to the page, as a ticket, so any process can renew it: it resumes the lock and hands it on again.
A page whose ticket does not count any more, because an answer did not arrive, proves with its
random id, and with its user, that the lock is its own. A page of the same user takes over without a
question.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any
from uuid import uuid4

from django.db import models
from django.utils.formats import date_format
from django.utils.timezone import get_current_timezone

from redlock_django.backends.base import BaseBackend
from redlock_django.engine.inspection.holders import Holding
from redlock_django.engine.validity import Lease
from redlock_django.exceptions import LockLost, RedlockError, ResourceLocked, TicketUsed
from redlock_django.locking import tickets
from redlock_django.locking.parameters import LockParameters
from redlock_django.locking.services import locks
from redlock_django.web.name_templates import resource

logger = logging.getLogger("redlock_django")

TTL = 60.0
"""Seconds for which a page counts as open after its last renewal, if MAX_TTL allows it.

Browsers run the timers of a hidden tab once a minute."""

RENEWALS = 3
"""How often a visible page renews within the TTL."""

_PAGE = re.compile(r"[0-9a-f]{32}")
_DIGEST = 64  # characters of a digest: no shorter primary key is one


@dataclass(frozen=True, kw_only=True)
class Editor:
    """The editor who has a page open, and since when, in seconds since 1970."""

    name: str
    since: float
    is_same_user: bool

    def __str__(self) -> str:
        """Return the sentence that is shown to another editor, without a full stop."""
        moment = datetime.fromtimestamp(self.since, get_current_timezone())
        is_today = moment.date() == datetime.now(get_current_timezone()).date()
        time = date_format(moment, "H:i" if is_today else "Y-m-d H:i")
        if self.is_same_user:
            return f"You have this open in another tab since {time}"
        return f"{self.name} has had this open since {time}"


@dataclass(frozen=True, kw_only=True)
class Viewer:
    """The user and the page of a request, by which the lock of a page is known as its own."""

    user: str
    name: str
    page: str

    @classmethod
    def of(cls, request: Any, page: str) -> Viewer:
        """Return the viewer of a request; its page is a new one unless `page` is the id of one."""
        user = getattr(request, "user", None)  # a site may have no users
        pk = str(getattr(user, "pk", None) or "")
        if len(pk) >= _DIGEST:  # a holder has the first 200 characters, which two may share
            pk = sha256(pk.encode()).hexdigest()
        name = str(getattr(user, "get_full_name", str)() or user) if pk else ""
        # Since when it is open, and randomness.
        new = f"{round(time.time()):08x}{uuid4().hex[:24]}"
        return cls(user=pk, name=name, page=page if _PAGE.fullmatch(page) else new)

    @property
    def holder(self) -> dict[str, str]:
        """The values about it that the lock of the page has."""
        return {"user": self.user, "editor": self.name, "page": self.page}

    def owns(self, held: Holding) -> bool:
        """Return whether a lock is that of the page."""
        # A reader of the store or of held_locks() knows the id: it proves nothing for another user.
        return held.holder.get("page") == self.page and held.holder.get("user") == self.user

    def is_user_of(self, held: Holding) -> bool:
        """Return whether a lock is that of a page of the same user."""
        return bool(self.user) and held.holder.get("user") == self.user

    def editor_of(self, held: Holding) -> Editor:
        """Return the editor whose page holds a lock."""
        return Editor(
            name=str(held.holder.get("editor") or "Another editor"),
            since=_since(held.holder, time.time()),
            is_same_user=self.is_user_of(held),
        )


class PageLock:
    """The lock with one name of one page. `ticket` is what its next report must have."""

    def __init__(self, name: str, viewer: Viewer, using: str, ticket: str) -> None:
        self._name, self._viewer, self._using = name, viewer, using
        self.ticket = ticket

    @property
    def _backend(self) -> BaseBackend:
        return locks[self._using].backend

    @property
    def _ttl(self) -> float:
        return ttl_of_page(self._using)

    def open(self, take: bool, take_own: bool) -> Editor | None:
        """Hold the lock, and return None, or the editor who holds it and is not replaced."""
        lease = self._resumed()
        if lease is not None:
            self._hand_on(lease)
            return None
        try:
            self._acquire()
            return None
        except ResourceLocked:
            held = self._held()
        if held is not None:
            may_take = take or (take_own and self._viewer.is_user_of(held))
            if not (may_take or self._viewer.owns(held)):
                return self._viewer.editor_of(held)
            self._backend.free(self._name, held.fingerprint)
        with contextlib.suppress(ResourceLocked):  # another page was faster: the next renewal tells
            self._acquire()
        return None

    def leave(self) -> None:
        """Release the lock if it is that of the page."""
        lease = self._resumed()
        if lease is not None:
            self._backend.release(lease)
            return
        held = self._held()
        if held is not None and self._viewer.owns(held):
            self._backend.free(self._name, held.fingerprint)

    def _acquire(self) -> None:
        self._hand_on(self._backend.acquire((self._name,), self._ttl, 0.0, self._holder_json()))

    def _hand_on(self, lease: Lease) -> None:
        """Hand a lease on to the page, for which it gets a ticket if the store can do that."""
        if self._backend.hands_on:
            passage = tickets.Passage()
            handed = self._backend.hand_on(lease, passage.token, self._ttl, lease.holder)
            self.ticket = passage.ticket(locks[self._using], handed)

    def _resumed(self) -> Lease | None:
        """Return the lease that was handed on to the page; None if its ticket does not count."""
        ticket = tickets.read(self.ticket)
        if not isinstance(ticket, tickets.Ticket) or ticket.lease.resources != (self._name,):
            return None
        holder = self._holder_json()
        handed = replace(ticket.lease, holder=holder)  # as it is again if the store fails
        try:
            lease = self._backend.resume(handed, self._ttl, holder)
        except (LockLost, TicketUsed):
            lease = None
        self.ticket = ""
        return lease

    def _holder_json(self) -> str:
        about = self._viewer.holder
        return LockParameters(self._name, using=self._using, holder=about).holder_json()

    def _held(self) -> Holding | None:
        return next(iter(self._backend.look([self._name]).locks), None)


class Presence:
    """One page on which one user edits one row: its locks, one for each name of the row."""

    def __init__(
        self, request: Any, row: models.Model, using: str, page: str = "", ticket: str = ""
    ) -> None:
        self._row, self._using = row, using
        self.viewer = Viewer.of(request, page)
        sent = iter(ticket.split(" "))
        self._locks = [
            PageLock(name, self.viewer, using, next(sent, "")) for name in names_of_row(row)
        ]

    @property
    def page(self) -> str:
        """The random id of the page."""
        return self.viewer.page

    @property
    def ticket(self) -> str:
        """The tickets of its locks, which the page sends with its next report."""
        return " ".join(lock.ticket for lock in self._locks)

    def open(self, *, take: bool = False, take_own: bool = False) -> Editor | None:
        """Note that the page is open; return the editor who has the row open on another page.

        With `take`, take over from that editor; with `take_own`, from another page of this user.
        Returns None if it is not known, because the store cannot be reached: then nothing keeps the
        page from being edited.
        """
        try:
            return self._open_all(take, take_own)
        except RedlockError as error:
            names = ", ".join(names_of_row(self._row))
            logger.info("redlock %s: it is not known who edits it: %s", names, error)
        return None

    def _open_all(self, take: bool, take_own: bool) -> Editor | None:
        """Open each lock; if another page has one, leave the others and return its editor."""
        for lock in self._locks:
            editor = lock.open(take, take_own)
            if editor is not None:
                for other in {*self._locks} - {lock}:
                    other.leave()
                return editor
        return None

    def other(self) -> Editor | None:
        """Return the editor who has the row open on another page, and note nothing."""
        every = editors_of(self.viewer, [self._row], self._using)
        return next((editor for _, editor in every), None)

    def leave(self) -> None:
        """Note that the page is closed."""
        with contextlib.suppress(RedlockError):
            for lock in self._locks:
                lock.leave()


def ttl_of_page(using: str) -> float:
    """Return the seconds for which a page counts as open after a report."""
    return min(TTL, locks[using].backend.settings.max_ttl)


def editors_of(
    viewer: Viewer, rows: Sequence[models.Model], using: str
) -> list[tuple[models.Model, Editor]]:
    """Return the rows that are open on other pages, each with an editor.

    The store is asked once for all of them; if it cannot be reached, no row counts as open.
    """
    names = [(name, row) for row in rows for name in names_of_row(row)]
    try:
        found = locks[using].backend.look([name for name, _ in names]) if names else None
    except RedlockError as error:
        logger.info("redlock: it is not known who edits %d rows: %s", len(rows), error)
        return []
    held = {one.resource: one for one in (found.locks if found else ())}
    others = [(row, held[name]) for name, row in names if name in held]
    return [(row, viewer.editor_of(one)) for row, one in others if not viewer.owns(one)]


def names_of_row(row: models.Model) -> list[str]:
    """Return the names of the locks of a row: one, or one for each topmost parent.

    A proxy has the rows of its model. A row of a model with a parent is a row of the parent, too:
    both have the name of the topmost one.
    """
    found = {*_topmost(row._meta.concrete_model, row, row.pk)}
    return sorted(resource("edit:<label>:<pk>", label=label, pk=pk) for label, pk in found)


def _topmost(model: Any, row: models.Model, pk: Any) -> Iterator[tuple[str, str]]:
    """Yield the label and the primary key of the row in each parent that has no parent."""
    links = [link for link in model._meta.parents.values() if link is not None]
    if not links:
        yield model._meta.label_lower, str(pk)
    for link in links:
        parent = link.remote_field.model._meta.concrete_model
        yield from _topmost(parent, row, getattr(row, link.attname))


def _since(holder: Mapping[str, Any], now: float) -> float:
    """Return since when a page has been open; any program can write to its lock."""
    page = str(holder.get("page", ""))
    return min(now, int(page[:8], 16)) if _PAGE.fullmatch(page) else now
