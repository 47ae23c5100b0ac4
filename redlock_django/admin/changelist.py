"""The list of held locks: Django's own change list, with its filters, over the masters."""

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

from redlock_django.admin.masters import MasterRow, master_rows
from redlock_django.admin.queryset import PAGE, HeldLockQuerySet
from redlock_django.admin.words import LABELS
from redlock_django.engine.holders import HoldingState
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.handler import locks
from redlock_django.operate.health import master_status
from redlock_django.operate.inspection import HeldLocks


def aliases() -> list[str]:
    """Give the aliases of REDLOCK, the default one first."""
    return sorted(locks, key=lambda alias: alias != "default")


class AliasFilter(SimpleListFilter):
    """The masters of which alias; there is no "all", and nothing to choose with one alias."""

    title = gettext_lazy("alias")
    parameter_name = "using"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Every alias."""
        return [(alias, alias) for alias in aliases()]

    def has_output(self) -> bool:
        """Whether there is a choice; the address may name the only one."""
        return len(self.lookup_choices) > 1 or self.value() is not None

    def value(self) -> str | None:
        """The alias in the address, if one is."""
        return super().value()

    def choices(self, changelist: Any) -> Iterator[Any]:
        """The aliases, without "all"."""
        chosen = self.value() or next(iter(aliases()), None)
        for alias in aliases():
            yield {
                "selected": alias == chosen,
                "query_string": changelist.get_query_string({self.parameter_name: alias}),
                "display": alias,
            }

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """Ask the masters of this alias."""
        if (alias := self.value()) is None:
            return queryset
        if alias not in aliases():
            raise IncorrectLookupParameters
        return queryset.of_alias(alias)


class StateFilter(SimpleListFilter):
    """Locks in one state."""

    title = gettext_lazy("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Every state, in words."""
        return [(state.value, LABELS[state]) for state in HoldingState]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """Ask for locks in this state."""
        if (state := self.value()) is None:
            return queryset
        try:
            return queryset.in_state(HoldingState(state))
        except ValueError as error:
            raise IncorrectLookupParameters from error


class HeldLockChangeList(ChangeList):
    """What the masters of one alias said: how they are, and the locks on this page.

    `masters` are the rows of the panel above the list, `problem` says what is wrong with the
    settings, where that is why nobody was asked.
    """

    queryset: HeldLockQuerySet

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.title = _("Held locks")

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        """As Django's; and only this page is asked for."""
        queryset: Any = super().get_queryset(request, exclude_parameters)
        return queryset.starting_at(max(0, self.page_num - 1) * PAGE)

    def get_results(self, request: HttpRequest) -> None:
        """Ask masters and locks in one survey: a master that hangs is waited for once."""
        self.masters: list[MasterRow] = []
        self.looked: HeldLocks | None = None
        self.problem = ""
        self.alias = self.queryset.asked.alias
        try:
            backend = locks[self.alias].backend
            with backend.survey() as survey:
                statuses = master_status(self.alias, survey=survey)
                self.masters = master_rows(statuses, backend.tolerate)
                self.queryset.survey = survey
                if self.queryset.asked.start >= self.queryset.page.total:
                    self.queryset = self.queryset.starting_at(0)  # there is no such page any more
                super().get_results(request)
                self.looked = self.queryset.page
        except InvalidRedlock as error:
            self.problem = str(error)
            self.queryset = self.queryset.filter(pk__in=())
            super().get_results(request)
        self.queryset.survey = None
        self.show_admin_actions = bool(self.result_count)
        if not (self.query or self.has_active_filters):
            self.full_result_count = self.result_count  # so that it is not said twice

    @property
    def counted(self) -> str:
        """How many locks there are, and of how many that is known, in one sentence."""
        if self.looked is None:
            return ""
        number = number_format(self.looked.total, force_grouping=True)
        if self.query or self.queryset.asked.state:
            said = ngettext("%s lock fits.", "%s locks fit.", self.looked.total) % number
        else:
            about = self.looked.about
            number = number_format(max(about, self.looked.total), force_grouping=True)
            said = ngettext("%s lock is held.", "%s locks are held.", about) % number
        return said

    @property
    def stopped(self) -> str:
        """Where looking stopped before the end, in one sentence."""
        if self.looked is None or self.looked.stopped_at is None:
            return ""
        number = number_format(self.looked.stopped_at, force_grouping=True)
        if self.query:
            return _("The search stopped at %s names on each master: there may be more.") % number
        return _("The list stopped at %s locks: search for a resource to find others.") % number
