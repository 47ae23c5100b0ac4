"""The admin of idempotency records: how each request ended, and resolving uncertain ones.

What only its pages need of idempotency is imported by them: every process imports this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.options import ShowFacets
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models.constants import LOOKUP_SEP
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from redlock_django.admin import labels
from redlock_django.admin.idempotency.labels import (
    EXPLANATIONS,
    RESOLVE_MESSAGES,
    badge,
    displayed_response,
)
from redlock_django.admin.read_only import ReadOnlyMixin
from redlock_django.engine.inspection.printable import printable
from redlock_django.exceptions import InvalidRedlock
from redlock_django.models import IdempotencyRecord

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[IdempotencyRecord]
else:
    _ModelAdmin = admin.ModelAdmin

FILTERABLE = frozenset(
    {"pk", "id", "state", "method", "path", "user", "status"}
    | {"created_at", "completed_at", "expires_at"}
)
"""The columns by which the URL of the list may filter."""


class MethodFilter(admin.SimpleListFilter):
    """Filter by HTTP method. Django's own filter would scan the table for its choices."""

    title = "method"
    parameter_name = "method"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return every method that may have an idempotency key."""
        from redlock_django.idempotency.settings import METHODS  # only this page needs it

        return [(method, method) for method in sorted(METHODS)]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """Return the records of the chosen method."""
        return queryset.filter(method=self.value()) if self.value() else queryset


class IdempotencyRecordAdmin(ReadOnlyMixin, _ModelAdmin):
    """The records of one database. Without its record, a request would be processed again.

    Records contain no keys. Response bodies are shown only to users with the permission
    `view_idempotency_body`. `using` is the alias of REDLOCK whose records are shown.
    """

    using = "default"

    list_display = ("request_line", "condition", "user", "status", "began", "ends")
    list_display_links = ("request_line",)
    list_filter = ("state", MethodFilter)
    search_fields = ("path", "user")
    search_help_text = "Search by part of the path or the user ID."
    ordering = ("-pk",)
    sortable_by = ("began", "ends")
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    actions = None

    class Media:
        css = {"all": ("redlock_django/admin.css",)}  # noqa: RUF012 - the form Django expects

    @admin.display(description="request")
    def request_line(self, record: IdempotencyRecord) -> SafeString:
        """Return the method and the path."""
        line = printable(f"{record.method} {record.path}")
        return format_html('<bdi class="redlock-name" title="{}">{}</bdi>', line, line)

    @admin.display(description="state", ordering="state")
    def condition(self, record: IdempotencyRecord) -> SafeString:
        """Return the stored state, without asking the masters about the lock."""
        return badge("in flight" if record.state == record.State.RUNNING else record.state)

    @admin.display(description="started", ordering="pk")
    def began(self, record: IdempotencyRecord) -> SafeString:
        """Return when the request started."""
        return labels.time_cell(record.created_at, lasts=False)

    @admin.display(description="expires", ordering="expires_at")
    def ends(self, record: IdempotencyRecord) -> Any:
        """Return until when the response is replayed."""
        return record.expires_at

    # Permissions.

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Return whether the URL of the list may filter by a lookup: by columns of the list only.

        A filter such as `?body__startswith=` would answer questions about a response, one byte
        at a time, to users without the permission to see it.
        """
        field = lookup.partition(LOOKUP_SEP)[0]
        return field in FILTERABLE and super().lookup_allowed(lookup, value, request)

    def has_body_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may see the responses that other users received."""
        return request.user.has_perm("redlock_django.view_idempotency_body")

    def has_resolve_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may resolve uncertain requests; requires the view permission."""
        may = request.user.has_perm("redlock_django.resolve_idempotencyrecord")
        return may and self.has_view_permission(request)

    # Pages.

    def get_queryset(self, request: HttpRequest) -> Any:
        """Return the records of the alias's database, without loading the responses."""
        from redlock_django.idempotency.settings import settings_of

        rows = super().get_queryset(request).defer("headers", "body", "messages")
        try:
            return rows.using(settings_of(self.using).database)
        except InvalidRedlock:
            return rows  # E001 reports it.

    def get_urls(self) -> list[URLPattern]:
        """Return Django's URL patterns and the one of `resolve_view`."""
        view = self.admin_site.admin_view(self.resolve_view)
        name = "redlock_django_idempotencyrecord_resolve"
        return [path("<path:object_id>/resolve/", view, name=name), *super().get_urls()]

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show one record."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        record = self.get_object(request, unquote(object_id))
        if record is None:
            return self._back(request, messages.WARNING, "This record no longer exists.")
        state = self._state(record)
        context = {
            **self._context(request, record, "Idempotency record"),
            "badge": badge(state),
            "explained": EXPLANATIONS[state],
            "resolvable": state in ("uncertain", "interrupted"),
            **(extra_context or {}),
        }
        if self.has_body_permission(request):
            context |= {
                **displayed_response(record),
                "may_view_body": True,
            }
        template = "admin/redlock_django/idempotencyrecord/detail.html"
        return TemplateResponse(request, template, context)

    def resolve_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for confirmation, then resolve an uncertain request."""
        if not self.has_resolve_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        record = self.get_object(request, unquote(object_id))
        verdict = request.POST.get("verdict")
        if record is None or verdict not in ("applied", "not-applied"):
            return self._back(request, messages.WARNING, "This record no longer exists.")
        if "confirmed" in request.POST:
            return self._resolve(request, record, applied=verdict == "applied")
        context = {
            **self._context(request, record, "Resolve an uncertain request"),
            "verdict": verdict,
            "applied": verdict == "applied",
        }
        template = "admin/redlock_django/idempotencyrecord/resolve.html"
        return TemplateResponse(request, template, context)

    def _resolve(
        self, request: HttpRequest, record: IdempotencyRecord, *, applied: bool
    ) -> HttpResponse:
        from redlock_django.exceptions import IdempotencyRefused
        from redlock_django.idempotency.resolve import ResolveOutcome, resolve, store_and_aliases

        user = request.user
        assert user.pk is not None  # The admin requires a login.
        try:
            store, aliases = store_and_aliases(self.using)
            outcome = resolve(
                store,
                record,
                applied=applied,
                by=user.get_username(),
                aliases=aliases,
            )
        except (InvalidRedlock, IdempotencyRefused) as error:
            return self._back(request, messages.ERROR, str(error))
        if outcome is ResolveOutcome.RESOLVED:
            LogEntry.objects.log_actions(
                user_id=user.pk,
                queryset=[record],
                action_flag=CHANGE if applied else DELETION,
                change_message=(
                    "Resolved: it took effect." if applied else "Resolved: it did not take effect."
                ),
            )
        level, text = RESOLVE_MESSAGES[outcome.value]
        return self._back(request, level, text % printable(str(record)))

    def _state(self, record: IdempotencyRecord) -> str:
        """Return the state of a request. The masters are asked whether its lock is still held."""
        from redlock_django.idempotency.resolve import is_running, store_and_aliases

        if record.state != record.State.RUNNING:
            return record.state
        try:
            running = is_running(record.key_hash, store_and_aliases(self.using)[1])
        except InvalidRedlock:
            running = None
        return {True: "running", False: "interrupted", None: "in flight"}[running]

    def _context(
        self, request: HttpRequest, record: IdempotencyRecord, title: str
    ) -> dict[str, Any]:
        request.current_app = self.admin_site.name
        return {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "media": self.media,
            "breadcrumb_list": labels.BREADCRUMB_LIST,
            "record": record,
            "name": printable(f"{record.method} {record.path}"),
            "began": labels.time_cell(record.created_at, lasts=False),
            "may_resolve": self.has_resolve_permission(request),
            "resolve_url": self._url(request, "resolve", record.pk),
            "record_url": self._url(request, "change", record.pk),
            "list_url": self._url(request, "changelist"),
        }

    def _url(self, request: HttpRequest, name: str, *args: Any) -> str:
        """Return the URL of one of these pages, with the filters of the list preserved."""
        name = f"admin:redlock_django_idempotencyrecord_{name}"
        url = reverse(name, args=args, current_app=self.admin_site.name)
        kept = self.get_preserved_filters(request)
        return add_preserved_filters({"preserved_filters": kept, "opts": self.opts}, url)

    def _back(self, request: HttpRequest, level: int, text: str) -> HttpResponse:
        messages.add_message(request, level, text)
        return HttpResponseRedirect(self._url(request, "changelist"))
