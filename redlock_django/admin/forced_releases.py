"""The admin of forced releases: a read-only list of locks that an operator released."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import admin
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from redlock_django.admin import labels
from redlock_django.admin.read_only import ReadOnlyMixin
from redlock_django.models import ForcedRelease, moment

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[ForcedRelease]
else:
    _ModelAdmin = admin.ModelAdmin


class ForcedReleaseAdmin(ReadOnlyMixin, _ModelAdmin):
    """The record of forced releases, newest first."""

    list_display = (
        "at",
        "name",
        "fingerprint",
        "held_by",
        "released_by",
        "outcome_word",
        "on_masters",
    )
    list_filter = ("outcome", "using")
    search_fields = ("resource", "by", "fingerprint")
    search_help_text = "Search by part of the resource, the user or the lock."
    fields = (
        "at",
        "released_by",
        "name",
        "using",
        "fingerprint",
        "outcome_word",
        "holder_details",
        "each_master",
    )
    readonly_fields = fields

    class Media:
        css = {"all": ("redlock_django/admin.css",)}  # noqa: RUF012 - the form Django expects

    @admin.display(description="resource", ordering="resource")
    def name(self, record: ForcedRelease) -> str:
        """Return the name, and the slot if it has a limit."""
        return labels.lock_name(record.resource, record.holder)

    @admin.display(description="holder")
    def held_by(self, record: ForcedRelease) -> SafeString:
        """Return the holder's process, and the path and user of its request."""
        return labels.holder_cell(record.holder)

    @admin.display(description="released by", ordering="by")
    def released_by(self, record: ForcedRelease) -> str:
        """Return the name of the operator who released the lock."""
        return record.by

    @admin.display(description="outcome", ordering="outcome")
    def outcome_word(self, record: ForcedRelease) -> str:
        """Return the label of the outcome."""
        return record.outcome

    @admin.display(description="servers")
    def on_masters(self, record: ForcedRelease) -> SafeString:
        """Return on how many masters the lock was released."""
        released = sum(result == "released" for result in record.masters.values())
        return labels.master_count(released, len(record.masters))

    @admin.display(description="holder")
    def holder_details(self, record: ForcedRelease) -> SafeString:
        """Return every field of the holder's description."""
        return _lines(record.holder)

    @admin.display(description="servers")
    def each_master(self, record: ForcedRelease) -> SafeString:
        """Return the result on each master."""
        return _lines(record.masters)


def _lines(fields: dict[str, Any]) -> SafeString:
    return format_html_join(
        "",
        '<span class="redlock-line"><span class="redlock-quiet">{}</span> <bdi>{}</bdi></span>',
        (
            (
                name,
                labels.time_cell(moment(value))
                if name == "at"
                else labels.holder_field(fields, name),
            )
            for name, value in fields.items()
        ),
    )


def releases_url(request: HttpRequest, resource: str, site: str) -> str:
    """Return the URL of the forced releases of a resource, "" without the permission."""
    from django.contrib.admin.views.main import SEARCH_VAR  # 3 ms that only this page needs

    if not request.user.has_perm("redlock_django.view_forcedrelease"):
        return ""
    try:
        url = reverse("admin:redlock_django_forcedrelease_changelist", current_app=site)
    except NoReverseMatch:
        return ""  # ForcedRelease is not registered with this AdminSite.
    return f"{url}?{urlencode({SEARCH_VAR: resource})}"
