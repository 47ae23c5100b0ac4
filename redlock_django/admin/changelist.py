"""The change list of held locks and its filters. Its rows come from the masters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.http import HttpRequest
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from redlock_django.admin.labels import LABELS
from redlock_django.admin.masters import MasterRow, master_rows
from redlock_django.admin.queryset import PAGE, HeldLockQuerySet
from redlock_django.engine.holders import HoldingState
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.handler import locks
from redlock_django.operate.health import master_status
from redlock_django.operate.inspection import HeldLocks


def aliases() -> list[str]:
    """Return the aliases of REDLOCK, "default" first."""
    return sorted(locks, key=lambda alias: alias != "default")


class AliasFilter(SimpleListFilter):
    """Choose the alias whose masters are asked. There is no "All"; one alias is no choice."""

    title = gettext_lazy("alias")
    parameter_name = "using"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return every alias."""
        return [(alias, alias) for alias in aliases()]

    def has_output(self) -> bool:
        """Return whether to show the filter: several aliases, or one named in the URL."""
        return len(self.lookup_choices) > 1 or self.value() is not None

    def value(self) -> str | None:
        """Return the alias named in the URL, or None."""
        return super().value()

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield the aliases, without "All"."""
        chosen = self.value() or next(iter(aliases()), None)
        for alias in aliases():
            yield {
                "selected": alias == chosen,
                "query_string": changelist.get_query_string({self.parameter_name: alias}),
                "display": alias,
            }

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """Return the locks of the chosen alias."""
        if (alias := self.value()) is None:
            return queryset
        if alias not in aliases():
            raise IncorrectLookupParameters
        return queryset.of_alias(alias)


class StateFilter(SimpleListFilter):
    """Filter by the state of a lock."""

    title = gettext_lazy("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return every state with its label."""
        return [(state.value, LABELS[state]) for state in HoldingState]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """Return the locks in the chosen state."""
        if (state := self.value()) is None:
            return queryset
        try:
            return queryset.in_state(HoldingState(state))
        except ValueError as error:
            raise IncorrectLookupParameters from error


class HeldLockChangeList(ChangeList):
    """The locks on one page, and the health of the masters they come from.

    `masters` are the rows of the table above the list. `problem` is the error in the settings
    because of which no master was asked, or "".
    """

    queryset: HeldLockQuerySet

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.title = _("Held locks")

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        """Return the queryset of Django's change list, limited to this page."""
        queryset: Any = super().get_queryset(request, exclude_parameters)
        return queryset.starting_at(max(0, self.page_num - 1) * PAGE)

    def get_results(self, request: HttpRequest) -> None:
        """Query health and locks in one inspection, so that a hanging master costs one timeout."""
        self.masters: list[MasterRow] = []
        self.looked: HeldLocks | None = None
        self.problem = ""
        self.alias = self.queryset.asked.alias
        try:
            service = locks[self.alias]
            with service.backend.inspect() as inspection:
                statuses = master_status(self.alias, inspection=inspection)
                self.masters = master_rows(statuses, service.settings.store.tolerate)
                self.queryset.inspection = inspection
                if self.queryset.asked.start >= self.queryset.page.total:
                    self.queryset = self.queryset.starting_at(0)  # This page no longer exists.
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
    def counted(self) -> str:
        """Return a sentence with the number of locks: all that are held, or all that match."""
        if self.looked is None:
            return ""
        number = number_format(self.looked.total, force_grouping=True)
        if self.query or self.queryset.asked.state:
            if not self.looked.total:
                return _("No lock matches.")
            return ngettext("%s lock matches.", "%s locks match.", self.looked.total) % number
        count = max(self.looked.about, self.looked.total)
        if not count:
            return _("No lock is held.")
        number = number_format(count, force_grouping=True)
        return ngettext("%s lock is held.", "%s locks are held.", count) % number

    @property
    def stopped(self) -> str:
        """Return a sentence about where the list or search was cut off, or ""."""
        if self.looked is None or self.looked.stopped_at is None:
            return ""
        number = number_format(self.looked.stopped_at, force_grouping=True)
        if self.query:
            return (
                _("The search stopped at %s names on each master. There may be more matches.")
                % number
            )
        return (
            _("The list stopped at %s locks. Search for a resource to find other locks.") % number
        )
