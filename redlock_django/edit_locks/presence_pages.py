"""Pages that show which editor has their row open, and report that they are open themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from django.db import models
from django.http import HttpResponse, JsonResponse
from django.middleware.csrf import get_token
from django.template.loader import render_to_string
from django.utils.http import urlencode
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.debug import sensitive_post_parameters

from redlock_django.edit_locks.differences import deleted_message
from redlock_django.edit_locks.forms import PAGE, VERSION
from redlock_django.edit_locks.presence import (
    RENEWALS,
    Editor,
    Presence,
    Viewer,
    editors_of,
    ttl_of_page,
)

ACTION = "_edit_lock"
"""The name of the field with what a page reports: "renew", "take" or "leave"."""

TICKET = "_edit_ticket"
"""The name of the field with the ticket of the lock of a page."""

MODE = "_edit"
"""The name of the parameter of a page that is to be read only."""

CONFLICTS = ("warn", "refuse")
"""The values of `edit_conflict`."""


class PresencePage:
    """One page on which a row is shown to be edited, or to be read while another edits it."""

    def __init__(self, request: Any, row: models.Model, *, using: str, conflict: str) -> None:
        self._request, self._using, self._is_refusing = request, using, conflict == "refuse"
        self._presence = Presence(request, row, using)
        self._deleted = deleted_message(row)
        self.editor: Editor | None
        is_reading = request.method == "GET" and request.GET.get(MODE) == "read"
        if is_reading or request.method == "HEAD":  # it opens no page
            self.editor, self.is_read_only = self._presence.other(), True
        else:
            self.editor = self._presence.open(take_own=True)
            self.is_read_only = self.editor is not None and self._is_refusing
        self.is_read_only = self.is_read_only and request.method == "GET"

    @property
    def page(self) -> str:
        """The random id of the page."""
        return self._presence.page

    def add_to(self, response: Any, form_id: str = "") -> None:
        """Show the editor above the form of a page, whatever its template is."""
        if hasattr(response, "add_post_render_callback"):
            add_above_form(response, self._rendered(), form_id)

    def _path(self, **more: str) -> str:
        """Return the path of this page with its parameters, such as those of a pop-up."""
        kept = {name: values for name, values in self._request.GET.lists() if name != MODE}
        query = urlencode({**kept, **more}, doseq=True)
        return f"{self._request.path}?{query}" if query else str(self._request.path)

    def _rendered(self) -> str:
        context = {
            "page": self.page,
            "ticket": self._presence.ticket,
            "every": f"{ttl_of_page(self._using) / RENEWALS:.3f}",
            "editor": str(self.editor or ""),
            "deleted": self._deleted,
            "is_read_only": self.is_read_only,
            "is_refusing": self._is_refusing,
            "edit_path": self._path(),
            "read_path": self._path(**{MODE: "read"}),
            "csrf_token": get_token(self._request),
            "nonce": _nonce(self._request),
        }
        return render_to_string("redlock_django/edit_presence.html", context)


def add_above_form(response: Any, shown: str, form_id: str = "") -> None:
    """Add HTML above the form of a page, whatever its template is."""

    def add(rendered: HttpResponse) -> None:
        content = rendered.content
        place = _form_in(content, form_id)
        if place >= 0:
            rendered.content = content[:place] + shown.encode() + content[place:]

    if hasattr(response, "add_post_render_callback"):
        response.add_post_render_callback(add)


def other_editors(
    request: Any, rows: Sequence[models.Model], *, using: str
) -> list[tuple[models.Model, Editor]]:
    """Return the rows that other users have open, with these; the page that was sent is not one."""
    viewer = Viewer.of(request, request.POST.get(PAGE, ""))
    every = editors_of(viewer, rows, using)
    return [(row, editor) for row, editor in every if not editor.is_same_user]


def _form_in(content: bytes, form_id: str) -> int:
    """Return where the form of a page begins, -1 if it has none."""
    version = content.find(f'{VERSION}"'.encode())  # after the prefix of the form, if it has one
    if version >= 0:
        return content.rfind(b"<form", 0, version)
    form = re.search(rb'<form[^>]*\bid="%s"' % re.escape(form_id.encode()), content)
    return form.start() if form and form_id else -1


def _nonce(request: Any) -> str:
    """Return the nonce of the page if the site allows elements with it only (Django 6)."""
    nonce = getattr(request, "_csp_nonce", None)  # false until it is read
    return "" if nonce is None else str(nonce)


def answer(request: Any, row: models.Model, *, using: str, conflict: str) -> HttpResponse:
    """Answer what a page has reported about itself."""

    @csrf_protect
    @sensitive_post_parameters(TICKET)
    def reported(request: Any) -> HttpResponse:
        sent = (request.POST.get(name, "") for name in (PAGE, TICKET))
        presence = Presence(request, row, using, *sent)
        action, is_warning = request.POST.get(ACTION), conflict == "warn"
        if action == "leave":
            presence.leave()
            return HttpResponse(status=204)
        editor = presence.open(take=action == "take" and is_warning)
        can_take = editor is not None and is_warning
        return JsonResponse(
            {"editor": str(editor or ""), "can_take": can_take, "ticket": presence.ticket}
        )

    return reported(request)
