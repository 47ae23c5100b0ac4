"""The open page of an editor: a lock with a TTL, whose holder is that page and not a process.

It is a hint for people: what is saved is decided by the versions of rows alone. A page proves with
its random id that the lock is its own, so any process can renew it: it frees this very lock and
acquires it again. A page of the same user takes over without a question.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

from django.db import models
from django.utils.formats import date_format
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as _

from redlock_django.exceptions import RedlockError, ResourceLocked
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


@dataclass(frozen=True, kw_only=True)
class Editor:
    """The editor who has a page open, and since when, in seconds since 1970."""

    name: str
    since: float
    is_same_user: bool

    def __str__(self) -> str:
        """Return the sentence that is shown to another editor."""
        moment = datetime.fromtimestamp(self.since, get_current_timezone())
        is_today = moment.date() == datetime.now(get_current_timezone()).date()
        about = {
            "editor": self.name,
            "time": date_format(moment, "H:i" if is_today else "Y-m-d H:i"),
        }
        if self.is_same_user:
            return _("You have this open in another tab since %(time)s") % about
        return _("%(editor)s has had this open since %(time)s") % about


class Presence:
    """One page on which one user edits one row."""

    def __init__(self, request: Any, row: models.Model, using: str, page: str = "") -> None:
        self.page = page if _PAGE.fullmatch(page) else uuid4().hex
        user = getattr(request, "user", None)  # a site may have no users
        self._user = str(getattr(user, "pk", None) or "")
        name = str(getattr(user, "get_full_name", str)() or user) if self._user else ""
        self._holder = {"user": self._user, "editor": name, "page": self.page}
        # A proxy has the rows of its model.
        label = row._meta.concrete_model._meta.label_lower  # type: ignore[union-attr]
        self._name = resource("edit:<label>:<pk>", label=label, pk=str(row.pk))
        self._using = using

    @property
    def ttl(self) -> float:
        """The seconds for which the page counts as open after this."""
        return min(TTL, locks[self._using].backend.settings.max_ttl)

    def open(self, *, take: bool = False, take_own: bool = False) -> Editor | None:
        """Note that the page is open; return the editor who has the row open on another page.

        With `take`, take over from that editor; with `take_own`, from another page of this user.
        Returns None if it is not known, because the store cannot be reached: then nothing keeps the
        page from being edited.
        """
        try:
            return self._open(take, take_own)
        except RedlockError as error:
            logger.info("redlock %s: it is not known who edits it: %s", self._name, error)
            return None

    def other(self) -> Editor | None:
        """Return the editor who has the row open on another page, and note nothing."""
        with contextlib.suppress(RedlockError):
            held = self._held()
            if held is not None and held.holder.get("page") != self.page:
                return self._editor(held.holder)
        return None

    def leave(self) -> None:
        """Note that the page is closed."""
        with contextlib.suppress(RedlockError):
            held = self._held()
            if held is not None and held.holder.get("page") == self.page:
                locks[self._using].backend.free(self._name, held.fingerprint)

    def _open(self, take: bool, take_own: bool) -> Editor | None:
        since = time.time()
        try:
            self._acquire(since)
            return None
        except ResourceLocked:
            held = self._held()
        if held is not None:
            about = held.holder
            is_own = about.get("page") == self.page
            if not (is_own or take or (take_own and self._is_of_user(about))):
                return self._editor(about)
            since = _since(about, since) if is_own else since
            locks[self._using].backend.free(self._name, held.fingerprint)
        with contextlib.suppress(ResourceLocked):  # another page was faster: the next renewal tells
            self._acquire(since)
        return None

    def _is_of_user(self, holder: Mapping[str, Any]) -> bool:
        return bool(self._user) and holder.get("user") == self._user

    def _editor(self, holder: Mapping[str, Any]) -> Editor:
        return Editor(
            name=str(holder.get("editor") or _("Another editor")),
            since=_since(holder, time.time()),
            is_same_user=self._is_of_user(holder),
        )

    def _acquire(self, since: float) -> None:
        about = {**self._holder, "since": f"{since:.3f}"}
        holder = LockParameters(self._name, using=self._using, holder=about).holder_json()
        locks[self._using].backend.acquire((self._name,), self.ttl, 0.0, holder)

    def _held(self) -> Any:
        found = locks[self._using].backend.look([self._name]).locks
        return found[0] if found else None


def _since(holder: Mapping[str, Any], now: float) -> float:
    """Return since when a page has been open; any program can write to its lock."""
    try:
        return min(now, max(0.0, float(holder.get("since", now))))
    except ValueError:
        return now
