"""Forced releases in the admin: who freed whose lock, to be read only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from redlock_django.admin import words
from redlock_django.models import ForcedRelease, moment

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[ForcedRelease]
else:
    _ModelAdmin = admin.ModelAdmin


class ForcedReleaseAdmin(_ModelAdmin):
    """The record of forced releases, newest first."""

    list_display = ("at", "resource", "fingerprint", "held_by", "by", "came_of_it", "on_masters")
    list_filter = ("outcome", "using")
    search_fields = ("resource", "by", "fingerprint")
    search_help_text = gettext_lazy("A part of the resource, the user or the lock.")
    fields = (
        "at",
        "by",
        "resource",
        "using",
        "fingerprint",
        "came_of_it",
        "about_holder",
        "each_master",
    )
    readonly_fields = fields

    class Media:
        css = {"all": ("redlock_django/admin.css",)}  # noqa: RUF012 - as Django has it

    @admin.display(description=gettext_lazy("holder"))
    def held_by(self, record: ForcedRelease) -> SafeString:
        """What the holder said of itself."""
        return words.owner(record.holder)

    @admin.display(description=gettext_lazy("outcome"), ordering="outcome")
    def came_of_it(self, record: ForcedRelease) -> str:
        """The outcome, in words."""
        return words.outcome(record.outcome)

    @admin.display(description=gettext_lazy("masters"))
    def on_masters(self, record: ForcedRelease) -> SafeString:
        """On how many masters it was freed."""
        freed = sum(said == "released" for said in record.masters.values())
        return words.masters(freed, len(record.masters))

    @admin.display(description=gettext_lazy("holder"))
    def about_holder(self, record: ForcedRelease) -> SafeString:
        """All that the holder said of itself."""
        return _lines(record.holder)

    @admin.display(description=gettext_lazy("masters"))
    def each_master(self, record: ForcedRelease) -> SafeString:
        """What came of it on each master."""
        return _lines(record.masters)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody may: a record is made by releasing."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: ForcedRelease | None = None) -> bool:
        """Nobody may."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: ForcedRelease | None = None) -> bool:
        """Nobody may."""
        return False


def _lines(said: dict[str, Any]) -> SafeString:
    return format_html_join(
        "",
        '<span class="redlock-line"><span class="redlock-quiet">{}</span> <bdi>{}</bdi></span>',
        (
            (name, words.when(moment(at)) if name == "at" else words.said(said, name))
            for name, at in said.items()
        ),
    )
