"""Whether every locked view gets what its lock needs: kwargs, colour, a transaction in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.db import connections

from redlock_django.checks.settings import TAG, lock_middlewares
from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.placement import OUTSIDE as IDEMPOTENT_OUTSIDE
from redlock_django.idempotency.placement import permissions_inside, replay_too_early
from redlock_django.web.nesting import dedupes
from redlock_django.web.options import LockOptions
from redlock_django.web.routes import Route, routes
from redlock_django.web.transactions import OUTSIDE, sees_commits, view_name


@register(TAG)
def check_views(**_: Any) -> list[CheckMessage]:
    """E004: an unknown URL kwarg. E005, E006: a lock comes too late. E007: an async template.

    E008: a lock that its alias cannot keep. E009 to E011: `@idempotent` in the wrong place.
    """
    if not getattr(settings, "ROOT_URLCONF", None):
        return []
    errors: list[CheckMessage] = []
    for route in routes():
        # One view at several URLs is told of once, unless the URLs differ in what they give.
        errors += [error for error in _faults(route) if error not in errors]
    return errors


def _faults(route: Route) -> Iterator[CheckMessage]:
    view: Any = route.pattern.callback
    yield from _wrong_terms(view_name(view), view, route)
    yield from _misplaced(view)
    atomic = [
        alias
        for alias in connections
        if connections[alias].settings_dict["ATOMIC_REQUESTS"]
        and alias not in getattr(view, "_non_atomic_requests", ())
    ]
    for name, handler in _handlers(view):
        yield from _wrong_terms(name, handler, route)
        if atomic and dedupes(handler):
            yield Error(
                f"{name} is @idempotent inside the transaction of ATOMIC_REQUESTS, so that it "
                "cannot know what is committed.",
                hint=IDEMPOTENT_OUTSIDE,
                id="redlock_django.E009",
            )
        if not (hasattr(handler, "lock_options") and atomic):
            continue
        if not lock_middlewares():
            yield Error(
                f"{name} takes its lock inside the transaction of ATOMIC_REQUESTS, and nothing "
                "would keep it until COMMIT.",
                hint="Add 'redlock_django.middleware.LockMiddleware' to MIDDLEWARE. Or better: "
                + OUTSIDE,
                id="redlock_django.E005",
            )
        for alias in atomic:
            if not sees_commits(connections[alias]):
                yield Error(
                    f"{name} takes its lock inside the transaction of ATOMIC_REQUESTS, which on "
                    f"database {alias!r} may go on reading what was true before the lock.",
                    hint=OUTSIDE,
                    id="redlock_django.E006",
                )


def _misplaced(view: Any) -> Iterator[CheckMessage]:
    """Find what a replay would slip past."""
    owner = getattr(view, "view_class", None) or getattr(view, "cls", None)
    if owner is None or not dedupes(view):
        return
    options = getattr(view, "idempotent_options", None)
    if hasattr(owner, "initialize_request"):
        yield Error(
            f"{view_name(owner)} is @idempotent before REST framework has authenticated anybody.",
            hint="Put it on handler methods or actions, and LockAPIMixin before APIView.",
            id="redlock_django.E010",
        )
    elif not getattr(options, "replay_check", None) and (inside := permissions_inside(view, owner)):
        yield Error(
            str(replay_too_early(view, inside)),
            id="redlock_django.E011",
        )


def _wrong_terms(name: str, view: Any, route: Route) -> Iterator[CheckMessage]:
    options: LockOptions | None = getattr(view, "lock_options", None)
    if options is None:
        return
    try:
        options.check()
    except InvalidRedlock as error:
        yield Error(f"{name}: {error}", id="redlock_django.E008")
    for template in options.templates:
        if template.is_async and not iscoroutinefunction(view):
            yield Error(
                f"{name} is a sync view, and its template {template.text!r} a coroutine function.",
                id="redlock_django.E007",
            )
    for kwarg, template_text in options.missing(route.kwargs):
        given = ", ".join(map(repr, sorted(route.kwargs))) or "none"
        yield Error(
            f"{name}: template {template_text!r} needs the URL kwarg {kwarg!r}; "
            f"the URL {route.path!r} gives: {given}.",
            id="redlock_django.E004",
        )


def _handlers(view: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Give the methods of a view class that answer requests, with their names for messages."""
    owner = getattr(view, "view_class", None) or getattr(view, "cls", None)
    if owner is None:
        return
    # Django REST framework's view sets say which action answers which method.
    actions = getattr(view, "actions", None) or {}
    for name in {*getattr(owner, "http_method_names", ()), *actions.values()}:
        if handler := getattr(owner, name, None):
            yield f"{view_name(owner)}.{name}", handler
