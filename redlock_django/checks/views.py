"""Checks of every locked view: URL kwargs, sync or async templates, transactions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error

from redlock_django.checks.aliases import valid_aliases
from redlock_django.checks.handlers import handlers_of
from redlock_django.checks.logins import login_inside_lock
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.services import locks
from redlock_django.web.options import LockOptions
from redlock_django.web.rules import Locked, Route, plan, routes
from redlock_django.web.view_kinds import view_name


def check_views(**_: Any) -> list[CheckMessage]:
    """Return errors for views whose lock cannot work, or that clients without rights can hold.

    W013: values with several spellings. E004: unknown URL kwarg. E007: async template on a sync
    view. E008: options that the alias does not allow. E012: locked before django-ninja
    authenticates the user, or `<user.pk>` read before REST framework does. W014: a login check
    inside the lock.
    """
    return errors_of_views(partial(_route_errors, planned=_planned(), invalid=_invalid_aliases()))


def errors_of_views(check: Callable[[Route], Iterable[CheckMessage]]) -> list[CheckMessage]:
    """Return the errors that a check finds in the URL patterns of the site.

    A view at several URLs is reported once, unless the URLs pass different kwargs.
    """
    errors: list[CheckMessage] = []
    if getattr(settings, "ROOT_URLCONF", None):
        for route in routes():
            errors += [error for error in check(route) if error not in errors]
    return errors


def _planned() -> Locked:
    try:
        return plan()
    except InvalidRedlock:
        return {}  # E001 or E002 reports it.


def _route_errors(
    route: Route, planned: Locked, invalid: Collection[str]
) -> Iterator[CheckMessage]:
    """Yield the errors of a view; those of the options of `invalid` aliases are not known."""
    view: Any = route.pattern.callback
    option_errors = partial(_option_errors, invalid=invalid)
    yield from option_errors(view_name(view), view, route)
    handlers = list(handlers_of(view))
    yield from login_inside_lock(view, handlers, rule=planned.get(route.pattern))
    if route.pattern in planned:
        yield from option_errors(view_name(view), planned[route.pattern], route)
    for function in (view, *(handler.function for handler in handlers)):
        if options := getattr(function, "lock_options", None):
            try:
                options.check_order(function)
            except InvalidRedlock as error:
                yield Error(str(error), id="redlock_django.E012")
    for handler in handlers:
        yield from option_errors(handler.name, handler.function, route)


def _option_errors(
    name: str, view: Any, route: Route, *, invalid: Collection[str]
) -> Iterator[CheckMessage]:
    if isinstance(getattr(view, "options", None), LockOptions):
        yield Error(
            f"{route.path!r}: lock_resource() has got a view instead of a template, so it returned "
            "a decorator.",
            hint="Write @lock_resource('order:<int:pk>'), or "
            "lock_resource('order:<int:pk>')(view).",
            id="redlock_django.E008",
        )
    options: LockOptions | None = getattr(view, "lock_options", None)
    if options is None:
        return
    if options.using in invalid:
        return  # E001 reports it once, for all views.
    try:
        options.check()
    except InvalidRedlock as error:
        yield Error(f"{name}: {error}", id="redlock_django.E008")
    for template in options.templates:
        if template.is_async and not iscoroutinefunction(view):
            yield Error(
                f"{name} is a sync view, but its template {template.text!r} is a coroutine "
                "function.",
                id="redlock_django.E007",
            )
        for placeholder in template.unconverted(route.converters):
            yield checks.Warning(
                f"{name}: <{placeholder}> in the template {template.text!r} may have several "
                "spellings of one value, such as '7' and '07', and each would have its own lock.",
                hint=f"Write <int:{placeholder}> or <uuid:{placeholder}>, or <str:{placeholder}> "
                "if it is text in which every spelling is another value.",
                id="redlock_django.W013",
            )
    for kwarg, template_text in options.missing(route.kwargs):
        given = ", ".join(map(repr, sorted(route.kwargs))) or "none"
        yield Error(
            f"{name}: template {template_text!r} needs the URL kwarg {kwarg!r}; "
            f"the URL {route.path!r} provides: {given}.",
            id="redlock_django.E004",
        )


def _invalid_aliases() -> set[str]:
    """Return the aliases of REDLOCK whose settings are invalid; "default" if it is empty."""
    return set(list(locks) or ["default"]) - {options.alias for options in valid_aliases()}
