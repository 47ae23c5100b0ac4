"""The filters of the list of idempotency records."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.http import HttpRequest
from django.utils.translation import gettext_lazy

from redlock_django.idempotency.errors import KeyInvalid
from redlock_django.idempotency.key import parse_key, request_hashes
from redlock_django.idempotency.scope import host_of, scope_of, user_of
from redlock_django.idempotency.settings import METHODS, settings_of

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
        return [(method, method) for method in sorted(METHODS)]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """Return the records of the chosen method."""
        return queryset.filter(method=self.value()) if self.value() else queryset


def key_hashes(request: HttpRequest, using: str, text: str) -> list[str]:
    """Return the hashes of a client's key, for a search for "USER KEY"; none for other searches.

    A key belongs to its user, and to the host unless there is a TENANT, so both are needed: the
    host is the one that the admin was opened on. Keys of anonymous clients, of tenants and of
    users that are not of AUTH_USER_MODEL are not found.
    """
    user_id, _, sent = text.strip().partition(" ")
    settings = settings_of(using)
    try:
        key = parse_key(sent)
    except KeyInvalid:
        return []
    user = user_of(get_user_model()(pk=user_id))
    scope = scope_of(user, None, None, host_of(request))
    hashes = request_hashes(scope or "", key, b"", settings.secrets)
    return [each.key_hash for each in hashes]
