"""The change list of held locks: one page of rows from the masters, and what is written above."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.http import HttpRequest
from django.urls import NoReverseMatch
from django.utils.formats import number_format
from django.utils.safestring import SafeString

from redlock_django.admin.held_locks.filters import PAGE
from redlock_django.admin.held_locks.masters import MasterRow, master_rows
from redlock_django.admin.held_locks.queryset import HeldLockQuerySet
from redlock_django.admin.held_locks.quorum_banner import QuorumBanner, quorum_banner
from redlock_django.admin.labels import badge
from redlock_django.engine.inspection.holders import HoldingState
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.names import is_resource
from redlock_django.locking.services import locks
from redlock_django.operate.health import caveat, master_status
from redlock_django.operate.inspection import MAX_LISTED, HeldLocks


class HeldLockChangeList(ChangeList):
    """The locks on one page, and the health of the masters they come from.

    `banner` shows whether there is a quorum, `masters` are the rows of the table above the list,
    and `are_masters` is whether they have an eviction policy and persistence of their own.
    `caveat` is what the store does not exclude, or "".
    `problem` is the error in the settings because of which no master was asked, or "".
    """

    queryset: HeldLockQuerySet
    search_name = SEARCH_VAR

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.title = "Held locks"

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        """Return the queryset of Django's change list, limited to this page."""
        queryset: Any = super().get_queryset(request, exclude_parameters)
        return queryset.asking(offset=max(0, self.page_num - 1) * PAGE)

    def url_for_result(self, result: Any) -> str:
        """Return the URL of a lock's page; raise NoReverseMatch, and Django does not link to one.

        A lock with an invalid name has no page: another program has set it.
        """
        if not is_resource(result.resource):
            raise NoReverseMatch(f"{result} is not a valid name")
        return super().url_for_result(result)

    def get_results(self, request: HttpRequest) -> None:
        """Query health and locks in one inspection, so that a hanging master costs one timeout."""
        self.masters: list[MasterRow] = []
        self.are_masters = True
        self.banner: QuorumBanner | None = None
        self.looked: HeldLocks | None = None
        self.caveat = ""
        self.problem = ""
        self.alias = self.queryset.asked.alias
        try:
            service = locks[self.alias]
            with service.backend.inspect() as inspection:
                statuses = master_status(self.alias, inspection=inspection)
                tolerated = service.settings.store.tolerate
                self.are_masters = service.backend.servers_are_masters
                self.masters = master_rows(statuses, tolerated)
                self.caveat = caveat(service.settings.store)
                self.banner = quorum_banner(
                    statuses,
                    tolerated=tolerated,
                    proceeds=service.settings.on_unavailable == "proceed",
                )
                self.queryset.inspection = inspection
                if self.queryset.asked.offset >= len(self.queryset.page.locks):
                    self.queryset = self.queryset.asking(offset=0)  # This page no longer exists.
                super().get_results(request)
                self.looked = self.queryset.page
        except InvalidRedlock as error:
            self.problem = str(error)
            self.queryset = self.queryset.filter(pk__in=())
            super().get_results(request)
        self.queryset.inspection = None
        self.show_admin_actions = bool(self.result_count)
        if not (self.query or self.has_active_filters):
            self.full_result_count = self.result_count  # Hides Django's second number.

    @property
    def narrowed(self) -> bool:
        """True if there is a search or a filter other than the alias."""
        asked = self.queryset.asked
        return bool(self.query or asked.state or asked.prefix or asked.holder)

    @property
    def counted(self) -> str:
        """Return a sentence with the number of locks: all that are held, or all that match."""
        if self.looked is None:
            return ""
        found = len(self.looked.locks)
        number = number_format(found)
        if len(self.looked.silent) == len(self.looked.servers):
            return "No server answered, so it is unknown which locks are held."
        if not self.looked.complete:
            known = "lock is known" if found == 1 else "locks are known"
            return f"{number} {known} from the servers that answered."
        if self.narrowed:
            if not found:
                return "No lock matches."
            return f"{number} {'lock matches' if found == 1 else 'locks match'}."
        if not found:
            return "No lock is held."
        return f"{number} {'lock is' if found == 1 else 'locks are'} held."

    @property
    def states(self) -> list[tuple[SafeString, str, str]]:
        """Return a badge, the number of locks and a link for each state that occurs."""
        if self.looked is None:
            return []
        states = Counter(one.state for one in self.looked.locks)
        return [
            (
                badge(state),
                number_format(number),
                self.get_query_string({"state": state.value}),
            )
            for state in HoldingState
            if (number := states[state])
        ]

    @property
    def is_empty(self) -> bool:
        """True if it is certain that no lock is held, whatever is searched for."""
        looked = self.looked
        return looked is not None and looked.complete and not (looked.locks or self.narrowed)

    @property
    def kept_parameters(self) -> list[tuple[str, str]]:
        """Return the parameters of the URL that the form for name and holder keeps."""
        own = (SEARCH_VAR, "prefix", "holder")
        return [(name, value) for name, value in self.params.items() if name not in own]

    @property
    def all_link(self) -> str:
        """Return a link to all locks of the alias, in the order of this list."""
        return self.get_query_string(remove=[SEARCH_VAR, "prefix", "holder", "state"])

    @property
    def stopped(self) -> str:
        """Return a sentence if more locks are held than were read, or ""."""
        if self.looked is None or not self.looked.truncated:
            return ""
        return (
            f"More than {number_format(MAX_LISTED)} locks are held. Only those that expire first "
            "were read. To find another lock, search for its whole name."
        )
