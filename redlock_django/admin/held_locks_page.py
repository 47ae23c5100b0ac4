"""The page of held locks: whether there is a quorum, who holds what, and release by force."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import django
from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.contrib.admin.models import DELETION, LogEntry
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.formats import number_format

from redlock_django.admin.lock_rows import held_by, replacement, row_of, rows_of
from redlock_django.backends.inspection.results import (
    Freed,
    HeldLocks,
    QuorumHealth,
    ReleaseOutcome,
)
from redlock_django.engine.inspection.holders import HoldingState, label_of
from redlock_django.engine.inspection.printable import printable
from redlock_django.exceptions import BadResource, InvalidRedlock
from redlock_django.locking.names import is_resource
from redlock_django.locking.services import locks
from redlock_django.models import HeldLock
from redlock_django.operate.forced_release import force_release
from redlock_django.operate.health import caveat, master_status
from redlock_django.operate.inspection import MAX_LISTED, held_locks, who_holds

PAGE = 50  # locks
REFRESH = range(2, 3601)  # seconds
MAX_NAMED = 10  # names in one message

EXPLANATIONS = {
    HoldingState.EXPIRING: "it expires soon, and does not seem to be renewed.",
    HoldingState.PARTIAL: (
        "only a minority of the servers stores it. It is being acquired or released, or an attempt "
        "to acquire it was not cleaned up. It excludes no client, and it expires."
    ),
    HoldingState.DISAGREEING: (
        "the servers store locks of several holders, and none of them has a majority. No client "
        "holds the resource."
    ),
    HoldingState.FOREIGN: "another program has set it. Its value does not identify the holder.",
    HoldingState.UNCLEAR: (
        "too few of the servers that answered store it. With the silent ones it may have a "
        "majority."
    ),
}
"""The meaning of each state but HELD, which needs no words."""

LIMITS_DIFFER = (
    "the holders of a name state different limits (1: a lock), as while a new limit is deployed. "
    "At most the largest number of clients holds it. If it stays so, two places of the code name "
    "it with different limits: write the same limit in both."
)

OUTCOMES = {
    ReleaseOutcome.RELEASED: (messages.SUCCESS, "Released: {names}."),
    ReleaseOutcome.NOT_HELD: (messages.WARNING, "Nothing to release, no longer held: {names}."),
    ReleaseOutcome.CHANGED: (
        messages.WARNING,
        "Not released: {names}. It has been acquired again since it was shown (lock {now}).",
    ),
    ReleaseOutcome.NO_QUORUM: (
        messages.ERROR,
        "Too few servers answered: {names} may still be held.",
    ),
}
"""The level and text of the message for each result; no text begins with a name."""


class HeldLocksPage:
    """One request for the page."""

    def __init__(self, model_admin: ModelAdmin[HeldLock], request: HttpRequest) -> None:
        self.admin = model_admin
        self.request = request
        aliases = sorted(locks, key=lambda alias: alias != "default")
        asked = request.GET.get("using", "")
        self.alias = asked if asked in aliases else next(iter(aliases), "default")
        self.aliases = aliases if len(aliases) > 1 else []

    def show_list(self, *, may_release: bool) -> HttpResponse:
        """Show one page of the locks, and the health of the servers they come from."""
        search = self.request.GET.get("q", "").strip()
        refresh = self._number("refresh") if self._number("refresh") in REFRESH else 0
        context: dict[str, Any] = {
            "search": search,
            "refresh": refresh,
            "may_release": may_release,
            "may_select": may_release and not refresh,
        }
        try:
            service = locks[self.alias]
            with service.backend.inspect() as inspection:
                servers = master_status(self.alias, inspection=inspection)
                offset = PAGE * max(0, self._number("p") - 1)
                wanted: dict[str, Any] = {"search": search, "limit": PAGE, "inspection": inspection}
                found = held_locks(self.alias, offset=offset, **wanted)
                if offset and not found.locks:  # the page does not exist any more
                    offset, found = 0, held_locks(self.alias, **wanted)
        except InvalidRedlock as error:
            return self._render("Held locks", {**context, "problem": str(error)})
        proceeds = service.settings.on_unavailable == "proceed"
        context |= {
            "quorum": quorum_line(QuorumHealth.of(servers), proceeds=proceeds),
            "servers": [one for one in servers if one.faults],
            "caveat": caveat(service.settings.store),
            "counted": counted(found, searched=bool(search)),
            "truncated": number_format(MAX_LISTED) if found.truncated else "",
            "rows": list(rows_of(found)),
            "is_empty": found.complete and not (found.locks or search),
            "legend": legend(found),
            "page": Paginator(range(found.count), PAGE).get_page(offset // PAGE + 1),
        }
        return self._render("Held locks", context)

    def confirm(self) -> HttpResponse:
        """Show the locks that were chosen as they are now, and ask whether to release them."""
        chosen = [one for one in self._chosen() if is_resource(one[1])]
        if not chosen:
            messages.warning(self.request, "Nothing was released: select the locks to release.")
            return self._back()
        found = who_holds(*{resource for _, resource in chosen}, using=self.alias)
        now = {holding.resource: holding for holding in found.locks}
        rows, gone = [], []
        for fingerprint, resource in chosen:
            holding = now.get(resource)
            if shown := held_by(fingerprint, holding):
                rows.append(row_of(shown, None))
            else:
                label = label_of(resource, holding.holder if holding else {})
                gone.append((printable(label), fingerprint, replacement(holding)))
        context = {"rows": rows, "gone": gone, "may_select": bool(rows), "confirming": True}
        return self._render("Force release", context)

    def release(self) -> HttpResponse:
        """Release the locks that were chosen, and record each release in the admin log."""
        user = self.request.user
        assert user.pk is not None  # The admin requires a login.
        done = []
        with locks[self.alias].backend.inspect() as inspection:
            for fingerprint, resource in self._chosen():
                try:
                    freed = force_release(
                        resource,
                        by=user.get_username(),
                        fingerprint=fingerprint,
                        using=self.alias,
                        inspection=inspection,
                    )
                except BadResource as error:
                    messages.error(self.request, str(error))
                    continue
                done.append(freed)
                if freed.fingerprint:
                    LogEntry.objects.log_actions(
                        user_id=user.pk,
                        queryset=[HeldLock(id=f"{fingerprint}:{resource}", resource=freed.label)],
                        action_flag=DELETION,
                        change_message=f"Released by force: {_on_each(freed.masters)}",
                    )
        self._add_messages(done)
        return self._back()

    def _add_messages(self, done: Sequence[Freed]) -> None:
        """Add one message for all locks with the same result."""
        alike: dict[tuple[ReleaseOutcome, str, str], list[str]] = defaultdict(list)
        for freed in done:
            alike[freed.outcome, freed.now, _on_each(freed.masters)].append(printable(freed.label))
        for (outcome, now, answers), names in alike.items():
            level, text = OUTCOMES[outcome]
            more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            text = text.format(names=", ".join(names[:MAX_NAMED]) + more, now=now)
            if answers:
                text += f" Result on each server: {answers}."
            messages.add_message(self.request, level, text)

    def _chosen(self) -> list[tuple[str, str]]:
        """Return the fingerprint and the resource of the locks that the form names, each once."""
        ids = dict.fromkeys(self.request.POST.getlist("lock"))
        parts = (one.partition(":") for one in ids if ":" in one)
        return [(fingerprint, resource) for fingerprint, _, resource in parts]

    def _number(self, name: str) -> int:
        """Return a parameter of the URL, 0 unless it is a number of a few digits."""
        text = self.request.GET.get(name, "")
        return int(text) if text.isdecimal() and len(text) < 6 else 0

    def _url(self, **changed: object) -> str:
        """Return the URL of the page with other parameters; without those that are empty."""
        query = self.request.GET.copy()
        for name, value in changed.items():
            query[name] = str(value or "")
        for name in [name for name, value in query.items() if not value]:
            del query[name]
        return f"{self.request.path}?{query.urlencode()}" if query else self.request.path

    def _back(self) -> HttpResponse:
        return HttpResponseRedirect(self._url())

    def _render(self, title: str, context: dict[str, Any]) -> HttpResponse:
        page = context.get("page")
        links = {
            "list_url": self._url(),
            "all_url": self._url(q="", p=""),
            "refresh_url": self._url(refresh=0 if context.get("refresh") else 5),
            "alias_urls": [(one, self._url(using=one, p="")) for one in self.aliases],
            "next_url": self._url(p=page.next_page_number()) if page and page.has_next() else "",
            "previous_url": (
                self._url(p=page.previous_page_number()) if page and page.has_previous() else ""
            ),
        }
        about = {
            **self.admin.admin_site.each_context(self.request),
            "title": title,
            "opts": self.admin.opts,
            "media": self.admin.media,
            # Since Django 6.1 the admin styles `ol.breadcrumbs`; before, `div.breadcrumbs`.
            "breadcrumb_list": django.VERSION >= (6, 1),
            "alias": self.alias,
        }
        self.request.current_app = self.admin.admin_site.name
        template = "admin/redlock_django/held_locks.html"
        return TemplateResponse(self.request, template, {**about, **links, **context})


# The quorum, and the number of locks.


def quorum_line(quorum: QuorumHealth, *, proceeds: bool) -> tuple[str, str]:
    """Return "ok", "warning" or "error", and sentences about whether locks are granted now.

    `proceeds` is whether requests run without a lock while there is no quorum (ON_UNAVAILABLE).
    """
    servers, count, needed = quorum
    text = f"{count} of {servers} servers are counted, {needed} are needed."
    if servers == 1:  # such as a database
        text = f"The only server is {'up' if count else 'not counted'}."
    if count == servers:
        up = f"Quorum: all {servers} servers are up, {needed} are needed."
        return "ok", text if servers == 1 else up
    if not quorum.is_reached:
        now = "requests run without a lock now (ON_UNAVAILABLE)"
        now = now if proceeds else "locks are refused now"
        again = "it is" if servers == 1 else f"{needed} servers are"
        return "error", (
            f"No quorum: {now}. {text} Locks that are held there cannot be renewed and end when "
            f"their TTL is over. Locks are granted again as soon as {again} counted."
        )
    spare = count - needed
    more = f"and {spare} more {'server' if spare == 1 else 'servers'} may fail."
    if not spare:
        more = "but if one more server fails, they are refused."
    return "warning", f"Quorum: {text} Locks are still granted, {more}"


def counted(found: HeldLocks, *, searched: bool) -> str:
    """Return a sentence with the number of locks: all that are held, or all that match."""
    number, one = number_format(found.count) if found.count else "No", found.count < 2
    if len(found.silent) == len(found.servers):
        return "No server answered, so it is unknown which locks are held."
    if not found.complete:
        known = "lock is known" if one else "locks are known"
        return f"{number} {known} from the servers that answered."
    if searched:
        return f"{number} {'lock matches' if one else 'locks match'}."
    return f"{number} {'lock is' if one else 'locks are'} held."


def legend(found: HeldLocks) -> dict[str, str]:
    """Return what the words in the list mean, as far as they need an explanation."""
    states = {one.state for one in found.locks}
    words = {state.value: text for state, text in EXPLANATIONS.items() if state in states}
    if any(len(held.limits) > 1 for held in found.slots.values()):
        words["different limits"] = LIMITS_DIFFER
    if any(one.missing for one in found.locks):
        words["not on"] = (
            "the server could not vote when the lock was acquired, or has lost its data since. The "
            "next renewal stores the lock there. The lock is safe: a majority stores it."
        )
    return words


def _on_each(answers: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {word}" for name, word in answers.items())
