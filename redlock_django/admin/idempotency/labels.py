"""Labels and formatting of idempotency records for the admin pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import messages
from django.utils.html import format_html
from django.utils.safestring import SafeString

from redlock_django.models import IdempotencyRecord

if TYPE_CHECKING:
    from redlock_django.idempotency.response import StoredResponse

MAX_BODY_LENGTH = 20_000
"""The number of characters of a response body that are shown."""

LABELS = {
    "running": ("held", "●", "running"),
    "interrupted": ("expiring", "▲", "interrupted"),
    "in flight": ("unclear", "?", "running or interrupted"),
    "uncertain": ("expiring", "▲", "uncertain"),
    "completed": ("ok", "✓", "completed"),
    "tombstone": ("foreign", "◇", "tombstone"),
}
"""The CSS class, sign and label of each state.

A record that is stored as "running" is shown as one of the first three.
"""

EXPLANATIONS = {
    "running": "This request is being processed.",
    "interrupted": (
        "This request was started but never finished, and its lock is no longer held. It may have "
        "taken effect. Retries get a 409 response until the record is resolved."
    ),
    "in flight": (
        "It is unknown whether the lock of this request is still held. If it is, the request is "
        "running; if not, it was interrupted."
    ),
    "uncertain": (
        "This request was interrupted, and it is unknown whether it took effect. Retries get a "
        "409 response until the record is resolved."
    ),
    "completed": "Retries get the stored response until it expires.",
    "tombstone": (
        "This request was completed, but its response is not available. Retries get a 409 "
        "response and are not processed again."
    ),
}

RESOLVE_MESSAGES = {
    "resolved": (messages.SUCCESS, "Resolved: %s."),
    "running": (messages.WARNING, "Not resolved: %s is still running."),
    "settled": (
        messages.WARNING,
        "Nothing to resolve: %s is no longer uncertain.",
    ),
    "no quorum": (
        messages.ERROR,
        "Not resolved: too few servers answered to find out whether %s is still running.",
    ),
}
"""The level and text of the message for the value of each `ResolveOutcome`."""


def badge(state: str) -> SafeString:
    """Return a state as a sign and a word, with its explanation as a tooltip."""
    css_class, sign, word = LABELS[state]
    return format_html(
        '<span class="redlock-badge redlock-{}" title="{}">'
        '<span aria-hidden="true">{}</span> {}</span>',
        css_class,
        EXPLANATIONS[state],
        sign,
        word,
    )


def displayed_response(record: IdempotencyRecord) -> dict[str, object]:
    """Return the headers and the body to show of a record."""
    from redlock_django.idempotency.records import response_of

    if record.state != record.State.COMPLETED:
        return {}
    response = response_of(record)
    return {"headers": response.headers, "body": _displayed_body(response)}


def _displayed_body(response: StoredResponse) -> str:
    """Return the beginning of a body that is text, and only the size of any other body."""
    body = response.body
    encoded = any(name.lower() == "content-encoding" for name, _value in response.headers)
    try:
        text = None if encoded else body.decode()
    except UnicodeDecodeError:
        text = None
    if text is None:
        return f"{len(body)} bytes of binary data"
    beginning = text[:MAX_BODY_LENGTH]
    shown = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in beginning)
    return shown if len(text) <= MAX_BODY_LENGTH else f"{shown}…"
