"""Labels and formatting of states, times and holders for the admin pages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import django
from django.utils import formats, timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timesince import timesince
from django.utils.translation import override

from redlock_django.engine.inspection.printable import printable

if TYPE_CHECKING:
    from redlock_django.backends.inspection.results import SlotsHeld
    from redlock_django.engine.inspection.holders import Holding, HoldingState

BREADCRUMB_LIST = django.VERSION >= (6, 1)
"""True if Django's admin styles `ol.breadcrumbs`; earlier versions style `div.breadcrumbs`."""


class StateLabel(NamedTuple):
    """The sign, the word and the explanation of a state."""

    sign: str
    word: str
    explanation: str


# Keyed by the values of HoldingState and ReleaseOutcome: every process with the admin loads this
# module, and not what defines those.
STATES = {
    "held": StateLabel("●", "held", "A majority of the servers stores this lock."),
    "expiring": StateLabel(
        "◔",
        "expiring",
        (
            "A majority of the servers stores this lock, but it expires soon and does not seem to "
            "be renewed."
        ),
    ),
    "partial": StateLabel(
        "◐",
        "partial",
        (
            "Only a minority of the servers stores this lock. It is being acquired or released, or "
            "an attempt to acquire it was not cleaned up. It excludes no client, and it expires."
        ),
    ),
    "disagreeing": StateLabel(
        "≠",
        "disagreeing",
        (
            "The servers store locks of several holders, and none of them has a majority. No "
            "client holds the resource."
        ),
    ),
    "foreign": StateLabel(
        "◇",
        "foreign",
        "Another program has set this key. Its value does not identify the holder.",
    ),
    "unclear": StateLabel(
        "?",
        "unclear",
        (
            "Too few of the servers that answered store this lock. With the silent ones it may "
            "have a majority."
        ),
    ),
}

LIMITS_DIFFER = (
    "The holders of this name state different limits (1: a lock), as while a new limit is "
    "deployed. At most the largest number of clients holds it. If it stays so, two places of the "
    "code name it with different limits: write the same limit in both."
)


def badge(state: HoldingState) -> SafeString:
    """Return a state as a sign and a word, with its explanation as a tooltip."""
    label = STATES[state.value]
    return format_html(
        '<span class="redlock-badge redlock-{}" title="{}">'
        '<span aria-hidden="true">{}</span> {}</span>',
        state.value,
        label.explanation,
        label.sign,
        label.word,
    )


def duration(value: float | None, digits: int = 1) -> str:
    """Return a duration in seconds, minutes or hours; None means that it never ends.

    Values below 20 s have `digits` digits after the decimal point.
    """
    if value is None:
        return "never expires"
    if value < 100:
        return f"{formats.number_format(value, digits if value < 20 else 0)} s"
    minutes = int(value // 60)
    if minutes < 120:
        return f"{minutes} min {int(value % 60)} s"
    return f"{minutes // 60} h {minutes % 60} min"


def age(since: datetime | None) -> str:
    """Return how long ago `since` was by the local clock, or "" for None."""
    if since is None:
        return ""
    passed = (timezone.now() - since).total_seconds()
    if passed < 7200:
        return duration(max(0.0, passed), 0)
    with override("en"):  # as the words around it
        return timesince(since)


def time_cell(since: datetime | None, *, lasts: bool = True) -> SafeString:
    """Return a time of day or date, followed by "for 5 s" (`lasts`) or "5 s ago"."""
    if since is None:
        return format_html('<span class="redlock-quiet">{}</span>', "unknown")
    local = _local(since)
    today = local.date() == (timezone.localdate() if timezone.is_aware(since) else date.today())
    shown = local.isoformat(" ", "seconds")
    return format_html(
        '<time datetime="{}">{}</time> <span class="redlock-quiet">{}</span>',
        local.isoformat(timespec="seconds"),
        shown[11:19] if today else shown[:16],
        f"for {age(since)}" if lasts else f"{age(since)} ago",
    )


def _local(moment: datetime) -> datetime:
    return timezone.localtime(moment) if timezone.is_aware(moment) else moment


def lock_name(resource: str, holder: Mapping[str, Any]) -> str:
    """Return the name of what a holder holds, in printable characters: "export, slot 1"."""
    from redlock_django.engine.inspection.holders import slot_in
    from redlock_django.engine.protocol.slots import name_of

    slot = slot_in(resource, holder)
    if slot is None:
        return printable(resource)
    return f"{printable(name_of(resource))}, slot {slot}"


def slots_line(slot: int | None, held: SlotsHeld | None) -> SafeString:
    """Return "slot 1 · 2/3 held" as a line of its own, nothing for a lock.

    Holders that state different limits are named in a second line.
    """
    lines = SafeString()
    if slot is not None:
        parts = [f"slot {slot}", *([f"{held!s} held"] if held is not None else [])]
        lines += format_html('<span class="redlock-line"><bdi>{}</bdi></span>', " · ".join(parts))
    if limits := different_limits(held):
        lines += format_html(
            '<span class="redlock-line"><span class="redlock-missing" title="{}">{}</span></span>',
            LIMITS_DIFFER,
            limits,
        )
    return lines


def different_limits(held: SlotsHeld | None) -> str:
    """Return "different limits: 3, 5", "" if the holders of a name agree."""
    if held is None or len(held.limits) < 2:
        return ""
    return f"different limits: {', '.join(map(str, held.limits))}"


def holder_field(holder: Mapping[str, Any], name: str) -> str:
    """Return one field of a holder's description as a printable string, or ""."""
    return printable(str(holder[name])) if holder.get(name) not in (None, "") else ""


def holder_process(holder: Mapping[str, Any]) -> str:
    """Return the host, process id, app and release of a holder, as far as they are known."""
    process = holder_field(holder, "pid")
    host, app = holder_field(holder, "host"), holder_field(holder, "app")
    release = holder_field(holder, "release")
    return " · ".join(filter(None, (host, f"pid {process}" if process else "", app, release)))


def holder_cell(holder: Mapping[str, Any]) -> SafeString:
    """Return a holder in two lines: its process; the path and user of its request."""
    where = holder_process(holder)
    if not where and not holder_field(holder, "path"):
        return format_html('<span class="redlock-quiet">{}</span>', "unknown")
    user = holder_field(holder, "user")
    return format_html(
        '<span class="redlock-line"><bdi>{}</bdi></span>'
        '<span class="redlock-line redlock-quiet"><bdi>{}</bdi> {}</span>',
        where,
        holder_field(holder, "path"),
        f"user\u00a0{user}" if user else "",
    )


def masters_of(holding: Holding) -> SafeString:
    """Return how many masters store a lock; a tooltip names those that could and do not."""
    count = master_count(len(holding.leading), len(holding.servers))
    if not (text := missing_text(holding)):
        return count
    return format_html('<span class="redlock-missing" title="{}">{}</span>', text, count)


def missing_text(holding: Holding) -> str:
    """Return why masters that answer do not store a lock that is held, or ""."""
    if not holding.missing:
        return ""
    return (
        f"Not stored on {', '.join(holding.missing)}: could not vote when the lock was acquired, "
        "or has lost its data since. The next renewal of the lock stores it there. The lock is "
        "safe: a majority stores it."
    )


def master_count(count: int, total: int) -> SafeString:
    """Return "3/5 masters". The style sheet may hide the word from all but screen readers."""
    word = "server" if total == 1 else "servers"
    return format_html(
        '<bdi class="redlock-number">{}/{}<span class="redlock-word"> {}</span></bdi>',
        count,
        total,
        word,
    )


def waiters_line(waiters: int) -> SafeString:
    """Return "2 waiters" as a line of its own, nothing for none."""
    if not waiters:
        return SafeString()
    text = f"{formats.number_format(waiters)} {'waiter' if waiters == 1 else 'waiters'}"
    return format_html('<span class="redlock-line redlock-quiet">{}</span>', text)


def minimum_hold_line(until: datetime | None) -> SafeString:
    """Return "minimum hold until 12:00:05" as a line of its own, nothing for None or the past."""
    if until is None or until < timezone.now():
        return SafeString()
    text = f"minimum hold until {_local(until):%H:%M:%S}"
    return format_html('<span class="redlock-line redlock-quiet">{}</span>', text)


def handed_on_line(handed_on: bool) -> SafeString:
    """Return "handed on, not yet taken" as a line of its own, nothing for a lock that is held."""
    if not handed_on:
        return SafeString()
    text = "handed on, not yet taken"
    return format_html('<span class="redlock-line redlock-quiet">{}</span>', text)
