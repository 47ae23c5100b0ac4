"""The filters of the list of held locks: alias, state, and the texts for prefix and holder.

What only its pages need is imported by them: every process with the admin imports this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.http import HttpRequest

from redlock_django.admin.labels import STATES
from redlock_django.engine.inspection.printable import printable

PAGE = 50
"""The number of locks on one page, and the most that one query requests."""


def aliases() -> list[str]:
    """Return the aliases of REDLOCK, "default" first."""
    from redlock_django.locking.services import locks

    return sorted(locks, key=lambda alias: alias != "default")


class AliasFilter(SimpleListFilter):
    """Choose the alias whose masters are asked. There is no "All"; one alias is no choice."""

    title = "alias"
    parameter_name = "using"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return every alias."""
        return [(alias, alias) for alias in aliases()]

    def has_output(self) -> bool:
        """Return whether to show the filter: several aliases, or one named in the URL."""
        return len(self.lookup_choices) > 1 or self.value() is not None

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
        return queryset.asking(alias=alias)


class StateFilter(SimpleListFilter):
    """Filter by the state of a lock."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return every state with its label."""
        return [(state, label.word) for state, label in STATES.items()]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """Return the locks in the chosen state."""
        from redlock_django.engine.inspection.holders import HoldingState

        if (state := self.value()) is None:
            return queryset
        try:
            return queryset.asking(state=HoldingState(state))
        except ValueError as error:
            raise IncorrectLookupParameters from error


class TextFilter(SimpleListFilter):
    """Filter by the words entered in the form above the list.

    It is listed with the other filters only while it is used, so that it can be removed there.
    """

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the text as the only choice."""
        return [(text, printable(text))] if (text := self.value()) else []

    def value(self) -> str | None:
        """Return the text in the URL without spaces around it, or None."""
        return (super().value() or "").strip() or None

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """Return the locks that fit the text: the parameter is one of `LockFilter`, too."""
        return queryset.asking(**{str(self.parameter_name): self.value() or ""})


class PrefixFilter(TextFilter):
    """Show the locks whose resource begins with the text."""

    title = "beginning of the name"
    parameter_name = "prefix"


class HolderFilter(TextFilter):
    """Show the locks of the holders that fit every word of the text."""

    title = "holder"
    parameter_name = "holder"
