"""The filters of the list of idempotency records."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy

FILTERABLE = frozenset(
    {"pk", "id", "state", "method", "path", "user", "status"}
    | {"created_at", "completed_at", "expires_at"}
)
"""The columns by which the URL of the list may filter."""


class MethodFilter(admin.SimpleListFilter):
    """Filter by HTTP method. Django's own filter would scan the table for its choices."""

    title = gettext_lazy("method")
    parameter_name = "method"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return every method that may have an idempotency key."""
        from redlock_django.idempotency.settings import METHODS  # only this page needs it

        return [(method, method) for method in sorted(METHODS)]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """Return the records of the chosen method."""
        return queryset.filter(method=self.value()) if self.value() else queryset
