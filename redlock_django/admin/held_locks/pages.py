"""The admin of held locks: the list, the page of one lock, and forced releases.

What only its pages need is imported by them: every process with the admin imports this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import ShowFacets
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from redlock_django.admin import labels
from redlock_django.admin.held_locks.filters import (
    PAGE,
    AliasFilter,
    HolderFilter,
    PrefixFilter,
    StateFilter,
    aliases,
)
from redlock_django.admin.read_only import ReadOnlyMixin
from redlock_django.engine.inspection.printable import printable
from redlock_django.exceptions import BadResource
from redlock_django.models import HeldLock, moment

if TYPE_CHECKING:
    from redlock_django.admin.held_locks.changelist import HeldLockChangeList

    _ModelAdmin = admin.ModelAdmin[HeldLock]
else:
    _ModelAdmin = admin.ModelAdmin


class HeldLockAdmin(ReadOnlyMixin, _ModelAdmin):
    """List held locks, and release them by force with the permission `release_heldlock`."""

    list_display = ("name", "held_by", "held_since", "time_left", "on_masters", "condition")
    list_display_links = ("name",)
    list_filter = (AliasFilter, StateFilter, PrefixFilter, HolderFilter)
    list_per_page = PAGE
    list_max_show_all = 0
    search_fields = ("resource",)
    search_help_text = "Search by part of the resource name (case-sensitive)."
    ordering = ("ttl",)
    sortable_by = ("name", "held_by", "held_since", "time_left")
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    actions = ("release_selected",)

    class Media:
        css = {"all": ("redlock_django/admin.css",)}  # noqa: RUF012 - the form Django expects
        js = ("redlock_django/live.js",)

    @admin.display(description="resource", ordering="resource")
    def name(self, lock: HeldLock) -> SafeString:
        """Return the name, isolated from the text direction of the page, and the slot."""
        name = printable(lock.holding.name)
        return format_html(
            '<bdi class="redlock-name" title="{}">{}</bdi>{}',
            name,
            name,
            labels.slots_line(lock.holding.slot, lock.slots),
        )

    @admin.display(description="holder", ordering="holder")
    def held_by(self, lock: HeldLock) -> SafeString:
        """Return the holder's process, and the path and user of its request."""
        return labels.holder_cell(lock.holding.holder)

    @admin.display(description="held since", ordering="since")
    def held_since(self, lock: HeldLock) -> SafeString:
        """Return when the lock was acquired, by the holder's clock."""
        return labels.time_cell(lock.since)

    @admin.display(description="TTL left", ordering="ttl")
    def time_left(self, lock: HeldLock) -> SafeString:
        """Return after how long the lock expires unless it is renewed."""
        return format_html('<bdi class="redlock-number">{}</bdi>', labels.duration(lock.ttl))

    @admin.display(description="servers")
    def on_masters(self, lock: HeldLock) -> SafeString:
        """Return how many masters store the lock."""
        return labels.masters_of(lock.holding)

    @admin.display(description="state")
    def condition(self, lock: HeldLock) -> SafeString:
        """Return the state, the end of a minimum hold, and the number of waiters."""
        holding = lock.holding
        return (
            labels.badge(holding.state)
            + labels.handed_on_line(holding.handed_on)
            + labels.minimum_hold_line(moment(holding.minimum_hold_until))
            + labels.waiters_line(holding.waiters)
        )

    def action_checkbox(self, obj: HeldLock) -> SafeString:
        """Return the checkbox of a row; a lock with an invalid name cannot be released here."""
        from redlock_django.locking.names import is_resource

        return super().action_checkbox(obj) if is_resource(obj.resource) else SafeString()

    # Permissions.

    def has_release_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may release locks by force; requires the view permission."""
        may = request.user.has_perm("redlock_django.release_heldlock")
        return may and self.has_view_permission(request)

    # Pages.

    def get_queryset(self, request: HttpRequest) -> Any:
        """Return a lazy queryset of the held locks of the first alias."""
        from redlock_django.admin.held_locks.queryset import HeldLockQuerySet

        return HeldLockQuerySet(HeldLock).asking(alias=next(iter(aliases()), "default"))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[HeldLockChangeList]:
        """Return the change list class that queries the masters."""
        from redlock_django.admin.held_locks.changelist import HeldLockChangeList

        return HeldLockChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[Any, bool]:
        """Search on the masters for the literal search term."""
        return (queryset.asking(search=search_term.strip()) if search_term else queryset), False

    def get_urls(self) -> list[URLPattern]:
        """Return Django's URL patterns and that of `release_view`."""
        name, site = "redlock_django_heldlock", self.admin_site
        return [
            path("release/", site.admin_view(self.release_view), name=f"{name}_release"),
            *super().get_urls(),
        ]

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show one lock and its state on each master."""
        from redlock_django.admin.held_locks.detail import detail_context
        from redlock_django.admin.held_locks.shown_locks import led_by, replacement_text
        from redlock_django.engine.protocol.slots import name_of
        from redlock_django.locking.services import locks
        from redlock_django.operate.inspection import who_holds

        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            fingerprint, alias, resource = HeldLock.parts(unquote(object_id))
            name = name_of(resource)
            looked = who_holds(name, using=alias, slots=True) if alias in locks else None
        except (ValueError, BadResource):
            looked = None
        if looked is None:
            return self._back(request, messages.WARNING, "There is no such lock.")
        holding = next((one for one in looked.locks if one.resource == resource), None)
        seen = led_by(fingerprint, holding)
        if seen is None:
            lock_name = labels.lock_name(resource, holding.holder if holding else {})
            text = f"Lock on {lock_name}: {replacement_text(holding)}"
            return self._back(request, messages.WARNING, text)
        context = {
            **self._context(request, "Held lock"),
            **detail_context(seen, looked, locks[alias].settings.ttl),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/redlock_django/heldlock/detail.html", context)

    # Forced releases.

    @admin.action(description="Release selected held locks", permissions=("release",))
    def release_selected(self, request: HttpRequest, queryset: Any) -> HttpResponse:
        """Ask for confirmation. Only locks on the page can be selected, also by "all"."""
        return self._confirm(request, request.POST.getlist(ACTION_CHECKBOX_NAME))

    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for confirmation, then release the locks that were shown."""
        from redlock_django.admin.held_locks.release_action import add_messages, release_locks

        if not self.has_release_permission(request):
            raise PermissionDenied
        if request.method != "POST":  # the address of a confirmation, loaded again after a login
            text = "Nothing was released. Select the locks to release in this list."
            return self._back(request, messages.WARNING, text)
        ids = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if "confirmed" not in request.POST:
            return self._confirm(request, ids)
        add_messages(request, release_locks(request, ids))
        return self._back(request)

    def _confirm(self, request: HttpRequest, ids: list[str]) -> HttpResponse:
        from redlock_django.admin.held_locks.shown_locks import shown_locks

        every = shown_locks(ids)
        if not every:
            return self._back(request, messages.WARNING, "There is no such lock.")
        context = {
            **self._context(request, "Force release"),
            "every": every,
            "releasable": [one for one in every if one.lock is not None],
        }
        return TemplateResponse(request, "admin/redlock_django/heldlock/confirm.html", context)

    def _context(self, request: HttpRequest, title: str) -> dict[str, Any]:
        request.current_app = self.admin_site.name
        return {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "media": self.media,
            "breadcrumb_list": labels.BREADCRUMB_LIST,
            "may_release": self.has_release_permission(request),
            "checkbox": ACTION_CHECKBOX_NAME,
            "release_url": self._url(request, "release"),
            "list_url": self._url(request, "changelist"),
        }

    def _url(self, request: HttpRequest, name: str) -> str:
        """Return the URL of one of these pages, with the filters of the list preserved."""
        url = reverse(f"admin:redlock_django_heldlock_{name}", current_app=self.admin_site.name)
        kept = self.get_preserved_filters(request)
        return add_preserved_filters({"preserved_filters": kept, "opts": self.opts}, url)

    def _back(self, request: HttpRequest, level: int = 0, text: str = "") -> HttpResponse:
        if text:
            messages.add_message(request, level, text)
        return HttpResponseRedirect(self._url(request, "changelist"))
