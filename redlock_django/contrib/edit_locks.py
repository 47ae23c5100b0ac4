"""`EditLockMixin`: no editor in the admin overwrites what another has saved meanwhile.

It consists of locks and of the log that the admin writes (`LogEntry`). A page carries the newest
log entry that its object had when the page was opened. A save holds a lock while it runs, and is
refused if another user has a newer entry. A second lock, which a script renews, is held by the page
that is open: it only shows its user to others. Fields, formsets and templates are not changed, so
whatever a form contains is covered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from django.apps import apps
from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.admin.options import TO_FIELD_VAR
from django.contrib.admin.utils import quote, unquote
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.core.signing import BadSignature, Signer
from django.db import connections, models, router, transaction
from django.forms import Media, Script
from django.http import HttpResponseRedirect, JsonResponse, QueryDict
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.utils.formats import date_format
from django.utils.timezone import is_naive, localtime
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from redlock_django.exceptions import (
    BadTicket,
    InvalidRedlock,
    LockLost,
    NotAcquired,
    RedlockError,
    ResourceLocked,
    TicketUsed,
)
from redlock_django.locking.lock import Lock, lock
from redlock_django.locking.resume_lock import resume_lock
from redlock_django.locking.services import locks
from redlock_django.locking.transactions import MayReadOldData
from redlock_django.operate.inspection import who_holds
from redlock_django.web.name_templates import resource

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin

TTL = 60.0
"""The seconds for which a page counts as open after a report; MAX_TTL may shorten them."""

RENEWALS = 3
"""How many times a page reports within its TTL."""

WAIT = 5.0
"""The seconds for which a save waits for another save of the object."""

SEEN = "_edit_seen"
"""The parameter of a save with the newest log entry that the page has seen."""

LISTED = 10
"""The most saves of others that a refusal lists."""


class _NothingChanged(Exception):
    """A save without its lock was rolled back; the cause is the lock error."""


@dataclass
class _Page:
    """The change form of one object: the log entry that it has seen, and why it is not saved."""

    pk: Any
    seen: int = 0
    refusal: list[str] = field(default_factory=list)


class EditLockMixin(_ModelAdmin):
    """A ModelAdmin that refuses a save if another user has saved the object since it was shown.

    List it before ModelAdmin. The page says who has saved, when and what, and keeps what was
    entered: saving again replaces it. A page that is open shows which other user has the object
    open. `edit_using` is the alias of REDLOCK.
    """

    edit_using: str = "default"

    def get_urls(self) -> list[Any]:
        """Return the URLs, with that of the reports of open pages."""
        urls = super().get_urls()
        locked = {self._url_name("change"), self._url_name("delete")}
        for url in urls:
            if getattr(url, "name", None) in locked:
                # Their lock is acquired before BEGIN, so they open these transactions themselves.
                url.callback._non_atomic_requests = frozenset(connections)  # type: ignore[attr-defined]
        view = self.admin_site.admin_view(self.edit_presence_view)
        name = self._url_name("edit_presence")
        return [path("<path:object_id>/edit-presence/", view, name=name), *urls]

    def _url_name(self, page: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{page}"

    # Saves.

    def change_view(
        self, request: Any, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> Any:
        """Show or save one object; a save holds its lock, and is compared with the log."""
        # Not changeform_view(), around which django-reversion begins a transaction.
        view = partial(super().change_view, request, object_id, form_url, extra_context)
        obj = self._object(request, object_id)
        request._edit_page = page = None if obj is None else _Page(obj.pk)
        if page is None or request.method != "POST":
            if page is not None:  # before the object is read, or the page might show older values
                page.seen = self._entries(page.pk).values_list("pk", flat=True).first() or 0
            return self._run(view)
        page.seen = _seen(request)

        def compared() -> Any:
            found = self._entries(page.pk).using(router.db_for_write(LogEntry))
            others = found.filter(pk__gt=page.seen).exclude(user_id=request.user.pk)
            if entries := others.select_related("user")[:LISTED]:
                page.seen, page.refusal = entries[0].pk, _changed_by_others(entries)
            return view()

        try:
            return self._run(compared, page.pk)
        except _NothingChanged as error:
            page.refusal.append(_not_locked(request, error.__cause__))
        return self._run(view)

    def delete_view(self, request: Any, object_id: str, extra_context: Any = None) -> Any:
        """Ask before an object is deleted; delete it when no save of it runs."""
        view = partial(super().delete_view, request, object_id, extra_context)
        obj = self._object(request, object_id) if request.method == "POST" else None
        if obj is None:
            return self._run(view)
        try:
            return self._run(view, obj.pk)
        except _NothingChanged as error:
            self.message_user(request, _not_locked(request, error.__cause__), messages.ERROR)
        return HttpResponseRedirect(request.get_full_path())

    def _object(self, request: Any, object_id: str) -> Any:
        """Return the object of a change form; None where Django makes a new one, or refuses."""
        if "_saveasnew" in request.POST:
            return None
        to_field = request.POST.get(TO_FIELD_VAR, request.GET.get(TO_FIELD_VAR))
        if to_field and not self.to_field_allowed(request, to_field):
            return None
        return self.get_object(request, unquote(object_id), to_field)

    def _run(self, view: Callable[[], Any], pk: Any = None) -> Any:
        """Run a view in its transactions; with the key of an object, hold the lock of its saves.

        Raises _NothingChanged if that lock, or another one before COMMIT, is not held.
        """
        aliases = {one for one, about in connections.settings.items() if about["ATOMIC_REQUESTS"]}
        with ExitStack() as stack:
            if pk is None:
                self._begin(aliases, stack)
                return view()
            try:
                held = self._lock(pk, stack)
                self._begin({*aliases, router.db_for_write(self.model)}, stack)
                response = view()
                held.ensure_held()  # before COMMIT: another save may have begun
            except (NotAcquired, LockLost) as error:
                raise _NothingChanged from error
            return response

    def _lock(self, pk: Any, stack: ExitStack) -> Lock:
        """Acquire the lock of the saves of an object, which `stack` releases."""
        held = lock(self._lock_name("edit-save", pk), wait=WAIT, using=self.edit_using)
        held.keeps_response = True  # what is lost after COMMIT undoes nothing
        try:
            return held.enter_in(stack)
        except MayReadOldData as error:
            raise InvalidRedlock(
                f"{type(self).__qualname__}: the transaction of {error.alias!r} that is open "
                "around its saves may read data from before their lock. Remove what opens it, "
                "such as RevisionMiddleware (VersionAdmin does without), or use PostgreSQL at "
                "READ COMMITTED"
            ) from None

    def _begin(self, aliases: Iterable[str], stack: ExitStack) -> None:
        for alias in aliases:
            stack.enter_context(transaction.atomic(using=alias))

    def _lock_name(self, kind: str, pk: Any) -> str:
        label = _topmost(self.model)._meta.label_lower
        return resource(f"{kind}:<model>:<pk>", model=label, pk=str(pk))

    def _entries(self, pk: Any) -> models.QuerySet[LogEntry]:
        """Return the log entries of an object, and of the same row in other models."""
        top = _topmost(self.model)
        kinds = ContentType.objects.get_for_models(
            *(model for model in apps.get_models() if _topmost(model) is top),
            for_concrete_models=False,
        )
        ids = [kind.pk for kind in kinds.values()]
        found = LogEntry.objects.filter(content_type_id__in=ids, object_id=str(pk))
        return found.order_by("-pk")

    def get_form(
        self, request: Any, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> type[Any]:
        """Return the form class; of a save that is refused, one that has the reason as an error."""
        form: Any = super().get_form(request, obj, change=change, **kwargs)
        refusal = _refusal(request)
        if not refusal:
            return form  # type: ignore[no-any-return]

        class Refused(form):  # type: ignore[misc]
            def full_clean(self) -> None:
                super().full_clean()
                self.add_error(None, refusal)

        Refused.base_fields = form.base_fields  # the site may have changed them
        return Refused

    def save_form(self, request: Any, form: Any, change: bool) -> Any:
        """Return the object to save; raise InvalidRedlock for a save that is refused."""
        if _refusal(request):
            raise InvalidRedlock(
                f"{type(self).__qualname__} would save over the change of another user: "
                "call super() in its get_form()"
            )
        return super().save_form(request, form, change)

    # Pages.

    def render_change_form(
        self, request: Any, context: Any, add: bool = False, change: bool = False,
        form_url: str = "", obj: Any = None,
    ) -> Any:  # fmt: skip
        """Return the change form, whose URL for saves has what the page has seen."""
        page = getattr(request, "_edit_page", None)
        if page is not None:
            form_url = _with_seen(request, form_url, page.seen)
            if self.has_change_permission(request, obj):
                context["media"] += Media(js=[self._script(page)])  # type: ignore[list-item]
        return super().render_change_form(request, context, add, change, form_url, obj)

    def _script(self, page: _Page) -> Script:
        name = f"admin:{self._url_name('edit_presence')}"
        attributes = {
            "data-url": reverse(name, args=[quote(page.pk)], current_app=self.admin_site.name),
            "data-form": f"{self.opts.model_name}_form",
            "data-seen": page.seen,
            "data-every": self._ttl / RENEWALS,
        }
        return Script("redlock_django/edit-lock.js", defer=True, **attributes)

    # Presence.

    @property
    def _ttl(self) -> float:
        return min(TTL, locks[self.edit_using].settings.store.max_ttl)

    @method_decorator([require_POST, csrf_protect, sensitive_post_parameters("ticket")])
    def edit_presence_view(self, request: Any, object_id: str) -> JsonResponse:
        """Note that a page is open, or left; return its ticket, and which other user is there.

        The ticket is that of `transfer()`, signed again with the object and the user.
        """
        obj = self.get_object(request, unquote(object_id))
        if not self.has_change_permission(request, obj):
            raise PermissionDenied
        if obj is None:
            return JsonResponse({"message": "This was deleted after you opened the page."})
        name, user = self._lock_name("edit", obj.pk), str(request.user.pk)
        signer = Signer(salt=f"{__name__}.{self.edit_using}.{name}")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        new = {"user": user, "editor": _name(request.user), "since": now}
        sent: dict[str, Any] = {}
        with suppress(BadSignature):
            sent = signer.unsign_object(request.POST.get("ticket", ""))
        if sent.get("user") != user:
            sent = {}
        try:
            ticket, since = self._hold(name, new, sent, "leaving" in request.POST)
        except ResourceLocked:
            return JsonResponse({"message": self._other(name, user)})
        except (RedlockError, InvalidRedlock):  # a hint: the page is edited without it
            return JsonResponse({"ticket": request.POST.get("ticket", "")})
        kept = {"user": user, "ticket": ticket, "since": since}
        return JsonResponse({"ticket": signer.sign_object(kept)})

    def _hold(
        self, name: str, new: dict[str, str], sent: dict[str, str], leaving: bool
    ) -> tuple[str, str]:
        """Hold the lock of a page until its next report; return the ticket, and since when."""
        ttl = self._ttl
        if sent:
            about = {**new, "since": sent["since"]}
            with (
                suppress(BadTicket, TicketUsed, LockLost),  # its last answer may not have arrived
                resume_lock(sent["ticket"], ttl=ttl, until_commit=False, holder=about) as held,
            ):
                return "" if leaving else held.transfer(ttl), about["since"]
        if leaving:
            return "", ""
        with lock(
            name, using=self.edit_using, ttl=ttl, wait=0, until_commit=False, holder=new
        ) as held:
            return held.transfer(ttl), new["since"]

    def _other(self, name: str, user: str) -> str:
        """Return a line about another user who has the page open; "" if it is the same user."""
        found = next(iter(who_holds(name, using=self.edit_using).locks), None)
        about = found.holder if found is not None else {}
        if not about or about.get("user") == user:
            return ""
        line = f"{about.get('editor', 'Another user')} has had this open"
        with suppress(ValueError):  # any program can write to the lock
            line += f" since {_moment(datetime.fromisoformat(str(about.get('since'))))}"
        return line


def _topmost(model: type[models.Model]) -> type[models.Model]:
    """Return the model whose key the rows have: of a proxy its model, of a child its parent."""
    model = model._meta.concrete_model or model
    while (parent := model._meta.pk.remote_field) and getattr(parent, "parent_link", False):
        model = parent.model
    return model


def _refusal(request: Any) -> list[str]:
    """Return why the save of this request is refused; [] if it is not, or if it is no save."""
    page = getattr(request, "_edit_page", None)
    return page.refusal if page is not None else []


def _seen(request: Any) -> int:
    """Return the log entry that the page of a save has seen; 0 if it does not say that."""
    # The script sends it as a field, for themes that replace the URL of the form.
    sent = request.POST.get(SEEN, request.GET.get(SEEN, ""))
    return int(sent) if sent.isascii() and sent.isdecimal() and len(sent) < 19 else 0


def _with_seen(request: Any, url: str, seen: int) -> str:
    """Return the URL for a save, with the parameters of the page, if `url` is that of the page."""
    parts = urlsplit(url)
    query = QueryDict(parts.query if url else request.META["QUERY_STRING"], mutable=True)
    query[SEEN] = str(seen)
    return urlunsplit(parts._replace(query=query.urlencode()))


def _changed_by_others(entries: Iterable[LogEntry]) -> list[str]:
    return [
        "Not saved: it was changed after you opened this page.",
        *(f"{_name(one.user)}, {_moment(one.action_time)}: {one}" for one in entries),
        "What you entered is kept below, but files must be chosen again.",
        "Save again to replace what the others have saved, or compare it in another tab first.",
    ]


def _not_locked(request: Any, error: BaseException | None) -> str:
    if isinstance(error, LockLost):
        [*messages.get_messages(request)]  # those of the save, which was rolled back
    if isinstance(error, ResourceLocked):
        return "Nothing was changed: another save of it has not ended yet. Try again in a moment."
    return "Nothing was changed: its lock could not be acquired or was lost. Try again in a moment."


def _name(user: Any) -> str:
    return str(getattr(user, "get_full_name", str)() or user)


def _moment(when: datetime) -> str:
    return date_format(when if is_naive(when) else localtime(when), "DATETIME_FORMAT")
