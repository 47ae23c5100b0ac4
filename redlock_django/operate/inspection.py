"""Who holds what on which master.

Everything here asks the masters apart from the links that locks travel on, and none of it
may be called inside a running loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from django.utils.asyncio import async_unsafe

from redlock_django.backends.base import BaseBackend
from redlock_django.engine.commands import Deployment
from redlock_django.engine.holders import Holding, HoldingState, Sighting, merge
from redlock_django.exceptions import BadResource
from redlock_django.locking.handler import locks
from redlock_django.locking.names import check_resource
from redlock_django.wire.clock import clock
from redlock_django.wire.survey import Say, Survey

DEEPEST = 10_000
"""Locks that paging and sorting by resource look at; `HeldLocks.stopped_at` says so."""

EXAMINED = 4_000
"""Locks of which a filter by state asks every master what it has."""

SEARCHED = 100_000
"""Names that one search looks at on each master, if its second is not over before."""

_STEP = 1000  # names looked at in one step of a search, while locks have to wait
_VALUES = 500  # locks asked for in one go
_SEARCH_TIME = 1.0  # seconds
_LOOK_TIME = 3.0  # seconds, for more locks than one page has

ORDERS = ("ttl", "-ttl", "resource", "-resource")


@dataclass(frozen=True, kw_only=True)
class HeldLocks:
    """A page of the held locks of one alias.

    `total` is how many there are to page through; where `stopped_at` is not None, only so
    many were looked at, and there may be more. `about` is how many the fullest master has, in
    all groups of masters together.
    `silent` says of each master, by name, that could not be asked why.
    """

    using: str
    locks: tuple[Holding, ...]
    total: int
    about: int
    stopped_at: int | None
    silent: Mapping[str, str]


@async_unsafe
def held_locks(
    using: str = "default",
    *,
    search: str = "",
    state: HoldingState | None = None,
    order: str = "ttl",
    offset: int = 0,
    limit: int = 100,
    scan: bool = False,
    survey: Survey | None = None,
) -> HeldLocks:
    """Give a page of what is held on the masters of an alias, in `order` (one of ORDERS).

    `search` is a part of the resource name, in the same case. `scan` looks at every key of
    the masters, and so finds locks of other clients which nobody of ours has met. Masters
    that do not answer are told of, never raised. `survey` is one that is under way, so that
    a master that hangs is waited for once. Raises InvalidRedlock, ValueError.
    """
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
    backend = locks[using].backend
    deployment = backend.deployment
    by_name = order.endswith("resource")
    deepest = min(offset + limit, DEEPEST) if state is None else EXAMINED
    if by_name:
        deepest = DEEPEST
    stopped_at = None
    with under_way(using, survey) as survey:
        if search or scan:
            found = survey.ask(
                lambda say: _find(say, deployment, search, scan), _SEARCH_TIME + survey.timeout
            )
            names = _union(names for names, _ in found.values())
            if search and _is_name(search) and look(survey, backend, [search]):
                names.setdefault(search, 0.0)  # another client's, which is in no index
            stopped_at = max((looked for _, looked in found.values() if looked), default=None)
            about = total = len(names)
        else:
            last_first = order == "-ttl"
            pages = survey.ask(lambda say: _page(say, deployment, deepest, last_first))
            names = _union(names for _, names in pages.values())
            about = sum(_fullest(span, pages) for span in backend.spans)
            total = max(about, len(names))
            if about <= deepest:
                total = len(names)
            elif total > DEEPEST:
                total = stopped_at = DEEPEST
        chosen = sorted(names, key=(lambda n: n) if by_name else (lambda n: (names[n], n)))
        if order.startswith("-"):
            chosen.reverse()
        if state is None:
            page = look(survey, backend, chosen[offset : offset + limit])
        else:
            if total > EXAMINED:
                stopped_at = EXAMINED
            every = look(survey, backend, chosen[:EXAMINED])
            fitting = [holding for holding in every if holding.state is state]
            total, page = len(fitting), fitting[offset : offset + limit]
        return HeldLocks(
            using=using,
            locks=tuple(page),
            total=total,
            about=about,
            stopped_at=stopped_at,
            silent=silent_masters(survey, backend),
        )


@async_unsafe
def who_holds(*resources: str, using: str = "default", survey: Survey | None = None) -> HeldLocks:
    """Give what is known of these resources, as far as they are held.

    Raises InvalidRedlock, or BadResource for what can be no name.
    """
    names = [check_resource(resource) for resource in resources]
    backend = locks[using].backend
    with under_way(using, survey) as survey:
        found = look(survey, backend, names)
        return HeldLocks(
            using=using,
            locks=tuple(found),
            total=len(found),
            about=len(found),
            stopped_at=None,
            silent=silent_masters(survey, backend),
        )


def nearest_held(resource: str, using: str = "default") -> list[str]:
    """Give up to three held resources whose names are most like this one."""
    known = [holding.resource for holding in held_locks(using, limit=1000).locks]
    return get_close_matches(resource, known, n=3, cutoff=0.5)


def _page(
    say: Say, deployment: Deployment, count: int, last_first: bool
) -> tuple[int, dict[bytes, float]]:
    _, _, held, *pairs = say("held", [deployment.held], [count, int(last_first)])
    return held, _pairs(pairs)


def _fullest(span: range, pages: Mapping[int, tuple[int, Any]]) -> int:
    return max((pages[index][0] for index in span if index in pages), default=0)


def _find(
    say: Say, deployment: Deployment, search: str, scan: bool
) -> tuple[dict[bytes, float], int | None]:
    """Search the index, or every key; give how many were looked at if there are more."""
    literal = "".join("\\" + c if c in "*?[]\\^" else c for c in search)
    prefix = deployment.lock("")
    found: dict[bytes, float] = {}
    until = clock() + _SEARCH_TIME
    looked, cursor = 0, "0"
    while looked < SEARCHED and len(found) < DEEPEST and clock() < until:
        if scan:
            pattern = f"{prefix}*{literal}*" if literal else f"{prefix}*"
            _, _, at, *keys = say("scan", [], [cursor, pattern, _STEP])
            found |= {key.removeprefix(prefix.encode()): 0.0 for key in keys}
        else:
            _, _, at, *pairs = say("find", [deployment.held], [cursor, f"*{literal}*", _STEP])
            found |= _pairs(pairs)
        cursor = at.decode()
        looked += _STEP
        if cursor == "0":
            return found, None
    return found, looked


def _pairs(flat: Sequence[Any]) -> dict[bytes, float]:
    return {
        name: float("inf") if left < 0 else left / 1000
        for name, left in zip(flat[::2], flat[1::2], strict=True)
    }


def _union(every: Iterable[Mapping[bytes, float]]) -> dict[str, float]:
    names: dict[str, float] = {}
    for one in every:
        for raw, left in one.items():
            name = raw.decode(errors="backslashreplace")
            names[name] = max(left, names.get(name, 0.0))
    return names


def under_way(using: str, survey: Survey | None) -> AbstractContextManager[Survey]:
    """Give the survey that is under way, or one that ends with its block."""
    return nullcontext(survey) if survey is not None else locks[using].backend.survey()


def look(survey: Survey, backend: BaseBackend, names: Sequence[str]) -> list[Holding]:
    """Give what is held of these names now, in their order."""
    deployment = backend.deployment

    def values(say: Say) -> list[Any]:
        replies: list[Any] = []
        for start in range(0, len(names), _VALUES):
            part = names[start : start + _VALUES]
            replies += say("look", [deployment.lock(name) for name in part], [])[2:]
        return replies

    answers = survey.ask(values, _LOOK_TIME if len(names) > _VALUES else None) if names else {}
    holdings = []
    for index, name in enumerate(names):
        sightings = [
            Sighting(master, value, None if left < 0 else left / 1000)
            for master, reply in answers.items()
            for value, left in [reply[2 * index : 2 * index + 2]]
            if value is not None
        ]
        if sightings:
            span = span_of(backend, name, sightings)
            holdings.append(
                merge(
                    name,
                    (s for s in sightings if s.master in span),
                    len(span),
                    survey.silent.keys() & set(span),
                )
            )
    return holdings


def span_of(backend: BaseBackend, resource: str, sightings: Iterable[Sighting]) -> range:
    """Give the masters, by place, that decide who holds a resource.

    They are those of its group; and where these have nothing of it, those that it was left
    behind on, by who has other groups in the settings.
    """
    seen = {sighting.master for sighting in sightings}
    own = backend.spans[backend.group_of(resource)]
    return next((span for span in (own, *backend.spans) if seen & set(span)), own)


def _is_name(text: str) -> bool:
    try:
        return check_resource(text) == text
    except BadResource:
        return False


def silent_masters(survey: Survey, backend: BaseBackend) -> dict[str, str]:
    """Give the masters that could not be asked, by name, and why."""
    return {backend.names[index]: reason for index, reason in sorted(survey.silent.items())}
