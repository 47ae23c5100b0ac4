"""How states, times and holders are put into words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.utils import formats, timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timesince import timesince
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from redlock_django.engine.holders import HoldingState
from redlock_django.locking.names import printable
from redlock_django.operate.forced_release import ReleaseOutcome

LABELS = {
    HoldingState.HELD: gettext_lazy("held"),
    HoldingState.EXPIRING: gettext_lazy("expiring"),
    HoldingState.PARTIAL: gettext_lazy("partial"),
    HoldingState.DISAGREEING: gettext_lazy("disagreeing"),
    HoldingState.FOREIGN: gettext_lazy("foreign"),
    HoldingState.UNCLEAR: gettext_lazy("unclear"),
}

EXPLAINED = {
    HoldingState.HELD: gettext_lazy("A majority of the masters has it."),
    HoldingState.EXPIRING: gettext_lazy(
        "A majority of the masters has it, but not for long: nobody seems to renew it."
    ),
    HoldingState.PARTIAL: gettext_lazy(
        "Too few masters have it: it is being taken or released, or was left behind. "
        "It excludes nobody, and its time runs out."
    ),
    HoldingState.DISAGREEING: gettext_lazy(
        "Several holders, none of them on a majority of the masters: nobody has it."
    ),
    HoldingState.FOREIGN: gettext_lazy("Another client has set it: who, its value does not say."),
    HoldingState.UNCLEAR: gettext_lazy(
        "Too few of the masters that answered have it; with the silent ones it may be held."
    ),
}

OUTCOMES = {
    ReleaseOutcome.RELEASED: gettext_lazy("released"),
    ReleaseOutcome.NOT_HELD: gettext_lazy("not held"),
    ReleaseOutcome.CHANGED: gettext_lazy("changed"),
    ReleaseOutcome.NO_QUORUM: gettext_lazy("no quorum"),
}

_SIGNS = {
    HoldingState.HELD: "●",
    HoldingState.EXPIRING: "◔",
    HoldingState.PARTIAL: "◐",
    HoldingState.DISAGREEING: "≠",
    HoldingState.FOREIGN: "◇",
    HoldingState.UNCLEAR: "?",
}


def badge(state: HoldingState) -> SafeString:
    """A state as a sign and a word, explained where the pointer rests."""
    return format_html(
        '<span class="redlock-badge redlock-{}" title="{}">'
        '<span aria-hidden="true">{}</span> {}</span>',
        state.value,
        EXPLAINED[state],
        _SIGNS[state],
        LABELS[state],
    )


def seconds(value: float | None, digits: int = 1) -> str:
    """A time left, as exact as it matters; `digits` after the point where it is short."""
    if value is None:
        return _("never expires")
    if value < 100:
        return _("%s s") % formats.number_format(value, digits if value < 20 else 0)
    minutes = int(value // 60)
    if minutes < 120:
        return _("%(minutes)s min %(seconds)s s") % {
            "minutes": minutes,
            "seconds": int(value % 60),
        }
    return _("%(hours)s h %(minutes)s min") % {"hours": minutes // 60, "minutes": minutes % 60}


def age(since: datetime | None) -> str:
    """How long ago that was, by this machine's clock."""
    if since is None:
        return ""
    passed = (timezone.now() - since).total_seconds()
    return seconds(max(0.0, passed), 0) if passed < 7200 else timesince(since)


def when(since: datetime | None, *, lasts: bool = True) -> SafeString:
    """A moment and how long it has lasted since, or how long ago it was."""
    if since is None:
        return format_html('<span class="redlock-quiet">{}</span>', _("unknown"))
    local = timezone.localtime(since) if timezone.is_aware(since) else since
    today = local.date() == (timezone.localdate() if timezone.is_aware(since) else local.today())
    return format_html(
        '<time datetime="{}">{}</time> <span class="redlock-quiet">{}</span>',
        local.isoformat(timespec="seconds"),
        formats.time_format(local, "H:i:s") if today else formats.date_format(local, "Y-m-d H:i"),
        (_("for %s") if lasts else _("%s ago")) % age(since),
    )


def said(holder: Mapping[str, Any], name: str) -> str:
    """One thing that a holder says of itself, fit to be shown."""
    return printable(str(holder[name])) if holder.get(name) not in (None, "") else ""


def place(holder: Mapping[str, Any]) -> str:
    """Where a holder runs: host, process, app."""
    process = said(holder, "pid")
    words = (said(holder, "host"), _("pid %s") % process if process else "", said(holder, "app"))
    return " · ".join(word for word in words if word)


def owner(holder: Mapping[str, Any]) -> SafeString:
    """A holder in two short lines: where it runs; what for, and whose request it is."""
    where = place(holder)
    if not where and not said(holder, "path"):
        return format_html('<span class="redlock-quiet">{}</span>', _("unknown"))
    user = said(holder, "user")
    return format_html(
        '<span class="redlock-line"><bdi>{}</bdi></span>'
        '<span class="redlock-line redlock-quiet"><bdi>{}</bdi> {}</span>',
        where,
        said(holder, "path"),
        _("user %s").replace(" ", "\u00a0") % user if user else "",
    )


def masters(having: int, of: int) -> SafeString:
    """How many masters have it; a style may leave the word to who only hears the page."""
    word = ngettext("master", "masters", of)
    return format_html(
        '<bdi class="redlock-number">{}/{}<span class="redlock-word"> {}</span></bdi>',
        having,
        of,
        word,
    )


def outcome(stored: str) -> str:
    """The outcome of a forced release, as it is stored, in the reader's language."""
    try:
        return str(OUTCOMES[ReleaseOutcome(stored)])
    except ValueError:
        return stored
