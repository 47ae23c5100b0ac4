"""The admin of idempotency records: how each request ended, and resolving uncertain ones.

What only its actions need is imported by them: every process with the admin imports this module.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.options import ShowFacets
from django.db.models.constants import LOOKUP_SEP
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from redlock_django.admin.read_only import ReadOnlyMixin
from redlock_django.engine.inspection.printable import printable
from redlock_django.exceptions import InvalidRedlock
from redlock_django.models import IdempotencyRecord

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[IdempotencyRecord]
else:
    _ModelAdmin = admin.ModelAdmin

SHOWN = (
    "key_hash", "method", "path", "user", "state", "status",
    "created_at", "completed_at", "expires_at",
)  # fmt: skip
"""The columns of the page of a record: without the response, which another user has received."""

FILTERABLE = frozenset({"pk", "id", *SHOWN}) - {"key_hash"}
"""The columns by which the URL of the list may filter."""

MOST = 500  # records that one action resolves

OUTCOMES = {
    "resolved": (messages.SUCCESS, "Resolved: %s."),
    "running": (messages.WARNING, "Not resolved, still running: %s."),
    "settled": (messages.WARNING, "Nothing to resolve, no longer uncertain: %s."),
    "no quorum": (
        messages.ERROR,
        "Not resolved: too few servers answered to find out whether these are still running: %s.",
    ),
}
"""The level and text of the message for the value of each `ResolveOutcome`."""


class IdempotencyRecordAdmin(ReadOnlyMixin, _ModelAdmin):
    """The records of one database. Without its record, a request would be processed again.

    Records contain no keys. `using` is the alias of REDLOCK whose records are shown.
    """

    using = "default"

    fields = SHOWN
    list_display = ("request_line", "state", "user", "status", "created_at", "expires_at")
    list_filter = ("state",)
    search_fields = ("path", "user")
    search_help_text = "Search by part of the path or the user ID."
    ordering = ("-pk",)
    sortable_by = ("created_at", "expires_at")
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    actions = ("mark_done", "allow_repeat")

    @admin.display(description="request")
    def request_line(self, record: IdempotencyRecord) -> str:
        """Return the method and the path."""
        return printable(f"{record.method} {record.path}")

    def get_queryset(self, request: HttpRequest) -> Any:
        """Return the records of the alias's database, without loading the responses."""
        from redlock_django.idempotency.settings import settings_of

        rows = super().get_queryset(request).defer("headers", "body", "messages")
        try:
            return rows.using(settings_of(self.using).database)
        except InvalidRedlock:
            return rows  # E001 reports it.

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Return whether the URL of the list may filter by a lookup: by columns of the list only.

        A filter such as `?body__startswith=` would answer questions about a response, one byte
        at a time, to users who may not see it.
        """
        field = lookup.partition(LOOKUP_SEP)[0]
        return field in FILTERABLE and super().lookup_allowed(lookup, value, request)

    def has_resolve_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may resolve uncertain requests; requires the view permission."""
        may = request.user.has_perm("redlock_django.resolve_idempotencyrecord")
        return may and self.has_view_permission(request)

    @admin.action(description="It took effect: never process it again", permissions=("resolve",))
    def mark_done(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        """Ask for confirmation, then record that uncertain requests took effect."""
        return self._resolve(request, queryset, applied=True)

    @admin.action(description="It did not take effect: allow a repeat", permissions=("resolve",))
    def allow_repeat(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        """Ask for confirmation, then let retries of uncertain requests be processed."""
        return self._resolve(request, queryset, applied=False)

    def _resolve(
        self, request: HttpRequest, queryset: Any, *, applied: bool
    ) -> HttpResponse | None:
        from redlock_django.exceptions import IdempotencyRefused
        from redlock_django.idempotency.resolve import ResolveOutcome, resolve, store_and_aliases

        user, records = request.user, list(queryset[:MOST])
        assert user.pk is not None  # The admin requires a login.
        if not records:
            messages.warning(request, "These records no longer exist.")
            return None
        if "confirmed" not in request.POST:
            context = {
                **self.admin_site.each_context(request),
                "title": "Resolve uncertain requests",
                "opts": self.opts,
                "applied": applied,
                "records": [(record.pk, printable(str(record))) for record in records],
                "action": request.POST["action"],
                "checkbox": ACTION_CHECKBOX_NAME,
            }
            request.current_app = self.admin_site.name
            template = "admin/redlock_django/resolve_requests.html"
            return TemplateResponse(request, template, context)
        took, done = "took" if applied else "did not take", defaultdict[str, list[str]](list)
        try:
            store, aliases = store_and_aliases(self.using)
            for record in records:
                by = user.get_username()
                outcome = resolve(store, record, applied=applied, by=by, aliases=aliases)
                done[outcome.value].append(printable(str(record)))
                if outcome is ResolveOutcome.RESOLVED:
                    LogEntry.objects.log_actions(
                        user_id=user.pk,
                        queryset=[record],
                        action_flag=CHANGE if applied else DELETION,
                        change_message=f"Resolved: it {took} effect.",
                    )
        except (InvalidRedlock, IdempotencyRefused) as error:
            messages.error(request, str(error))
        for value, names in done.items():
            level, text = OUTCOMES[value]
            messages.add_message(request, level, text % ", ".join(names))
        return None
