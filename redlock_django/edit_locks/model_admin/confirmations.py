"""Pages that ask before rows are deleted or an action runs: they carry the versions of the rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, Self

from django.db import models, router
from django.http import HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from redlock_django.edit_locks.saving_transaction import transaction_of
from redlock_django.edit_locks.versions import (
    is_row,
    locked_rows,
    parsed_versions,
    row_version,
)

ROWS = "_edit_rows"
"""The name of the input with the versions of rows by primary key, as JSON."""

RELATED = "_edit_related"
"""The name of the input with the digest of what would be deleted together with the rows."""


class NotAsShown(Exception):
    """Rows are not those that were shown; the message is for the editor."""

    @classmethod
    def changed(cls, names: Iterable[object]) -> Self:
        """Return the refusal that names the rows that have changed."""
        changed = ", ".join(map(str, names))
        return cls(
            f"Nothing was done, because this has changed since the page was opened: {changed}. "
            "Look at it again."
        )


_TOKEN = re.compile(
    rb'(<form id="logout-form"[^>]*>\s*)?'
    rb'<input type="hidden" name="csrfmiddlewaretoken" value="[^"]*">'
)


def rows_input(rows: Iterable[models.Model], ignored: Iterable[str]) -> SafeString:
    """Return the input that carries the versions of rows, without the columns `ignored`.

    It is one for all rows: Django accepts DATA_UPLOAD_MAX_NUMBER_FIELDS inputs.
    """
    versions = json.dumps({str(row.pk): row_version(row, ignored) for row in rows})
    return format_html('<input type="hidden" name="{}" value="{}">', ROWS, versions)


def related_input(request: Any) -> SafeString:
    """Return the input that carries the digest of what would be deleted, too."""
    listing = getattr(request, "_redlock_related", "")
    return format_html('<input type="hidden" name="{}" value="{}">', RELATED, listing)


def compare_related(request: Any, listing: str) -> None:
    """Raise NotAsShown if the rows that would be changed, too, are not those that were shown."""
    if request.POST.get(RELATED) != listing:
        raise NotAsShown(
            "Nothing was done: what would be changed with it has changed. Look at it again."
        )


def compare_deletion(request: Any, deleted: Any) -> None:
    """Note what would be deleted; raise NotAsShown if a page was sent that has not shown this."""
    request._redlock_related = sha256(repr(deleted).encode()).hexdigest()
    if request.POST.get("post") or request.POST.get(RELATED):
        compare_related(request, request._redlock_related)


def compare_rows(
    request: Any, model: type[models.Model], rows: Sequence[Any], ignored: Iterable[str]
) -> None:
    """Lock the rows; raise NotAsShown if one is not as it was shown, or another has it open."""
    if not rows:
        return
    compare_editors(request, rows)
    transaction = transaction_of(request)
    shown = parsed_versions(request.POST.get(ROWS, ""))
    using = router.db_for_write(model, instance=rows[0])
    transaction.begin(using)
    stored = locked_rows(model, [row.pk for row in rows], using)
    changed = [
        row
        for row in rows
        if row.pk not in stored or not is_row(stored[row.pk], shown.get(str(row.pk), ""), ignored)
    ]
    if changed:
        raise NotAsShown.changed(changed)


def compare_editors(request: Any, rows: Sequence[Any]) -> None:
    """Raise NotAsShown if another editor has one of the rows open, and that refuses a save."""
    for row, editor in transaction_of(request).editors_of(rows):
        raise NotAsShown(f"Nothing was done. {editor}: {row}")


def add_inputs(response: Any, inputs: Iterable[SafeString]) -> None:
    """Add inputs to the forms of a page, beside their CSRF tokens, whatever its template is.

    The form that logs out does not get them: those of a list are long.
    """
    added = format_html_join("", "{}", ((one,) for one in inputs)).encode()

    def add(rendered: HttpResponse) -> None:
        rendered.content = _TOKEN.sub(
            lambda token: token[0] if token[1] else token[0] + added, rendered.content
        )
        if rendered.has_header("Content-Length"):
            rendered["Content-Length"] = str(len(rendered.content))

    if hasattr(response, "add_post_render_callback"):
        response.add_post_render_callback(add)
    elif "html" in response.get("Content-Type", "") and not response.streaming:
        add(response)
