"""How the states of idempotency records, and what they hold, are put into words."""

from __future__ import annotations

from django.contrib import messages
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from redlock_django.idempotency.resolve import ResolveOutcome
from redlock_django.models import IdempotencyRecord

SHOWN = 20_000
"""Characters of a body that are shown."""

LABELS = {
    "running": ("held", "●", gettext_lazy("running")),
    "interrupted": ("expiring", "▲", gettext_lazy("interrupted")),
    "in flight": ("unclear", "?", gettext_lazy("running or interrupted")),
    "uncertain": ("expiring", "▲", gettext_lazy("uncertain")),
    "completed": ("ok", "✓", gettext_lazy("completed")),
    "tombstone": ("foreign", "◇", gettext_lazy("tombstone")),
}
"""The colour, sign and word of each state; "running" in a record may be any of the first three."""

EXPLAINED = {
    "running": gettext_lazy("It is being worked on."),
    "interrupted": gettext_lazy(
        "It began and never ended, and nobody holds its lock. It may have had its effect; a "
        "retry is answered 409 until somebody says whether it had."
    ),
    "in flight": gettext_lazy("Which of the two, the lock of its key says, if it can be asked."),
    "uncertain": gettext_lazy(
        "It was interrupted, and nobody knows whether it had its effect. A retry is answered 409 "
        "until somebody says so."
    ),
    "completed": gettext_lazy("A retry is given the same response until it expires."),
    "tombstone": gettext_lazy(
        "It was completed, and there is no response to be given again. A retry is answered 409, "
        "and not run."
    ),
}

TOLD = {
    ResolveOutcome.RESOLVED: (messages.SUCCESS, gettext_lazy("Resolved: %s.")),
    ResolveOutcome.RUNNING: (messages.WARNING, gettext_lazy("Not resolved: %s is still running.")),
    ResolveOutcome.SETTLED: (
        messages.WARNING,
        gettext_lazy("Nothing to resolve: %s is not uncertain any more."),
    ),
    ResolveOutcome.NO_QUORUM: (
        messages.ERROR,
        gettext_lazy("Not resolved: too few masters answered to say whether %s is still running."),
    ),
}


def badge(state: str) -> SafeString:
    """A state as a sign and a word, explained where the pointer rests."""
    look, sign, word = LABELS[state]
    return format_html(
        '<span class="redlock-badge redlock-{}" title="{}">'
        '<span aria-hidden="true">{}</span> {}</span>',
        look,
        EXPLAINED[state],
        sign,
        word,
    )


def body_of(record: IdempotencyRecord) -> str:
    """Give a body as far as it is a text, and else only its size."""
    body = bytes(record.body)
    encoded = any(name.lower() == "content-encoding" for name, _value in record.headers)
    try:
        text = None if encoded else body.decode()
    except UnicodeDecodeError:
        text = None
    if text is None:
        return _("%s bytes that are no text") % len(body)
    shown = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text[:SHOWN])
    return shown if len(text) <= SHOWN else f"{shown}…"
