"""The admin of held locks: one page, for a model without a table.

What only the page needs is imported by it: every process with the admin imports this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path

from redlock_django.admin.read_only import ReadOnlyMixin
from redlock_django.exceptions import InvalidRedlock
from redlock_django.models import HeldLock

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[HeldLock]
else:
    _ModelAdmin = admin.ModelAdmin


class HeldLockAdmin(ReadOnlyMixin, _ModelAdmin):
    """List held locks, and release them by force with the permission `release_heldlock`."""

    class Media:
        css = {"all": ("redlock_django/admin.css",)}  # noqa: RUF012 - the form Django expects

    def get_urls(self) -> list[URLPattern]:
        """Return the URL pattern of the page, under the name of Django's list."""
        view = self.admin_site.admin_view(self.changelist_view)
        return [path("", view, name="redlock_django_heldlock_changelist")]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """List locks; on POST, ask for confirmation, then release the locks that were shown."""
        from redlock_django.admin.held_locks_page import HeldLocksPage

        if not self.has_view_permission(request):
            raise PermissionDenied
        page = HeldLocksPage(self, request)
        may_release = request.user.has_perm("redlock_django.release_heldlock")
        if request.method != "POST":
            return page.show_list(may_release=may_release)
        if not may_release:
            raise PermissionDenied
        try:
            return page.release() if "confirmed" in request.POST else page.confirm()
        except InvalidRedlock:
            return page.show_list(may_release=may_release)  # which says what is wrong
