"""Checks of the IDEMPOTENCY settings and of the views that are `@idempotent`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error

from redlock_django.checks.idempotency_stores import store_warnings
from redlock_django.checks.views import atomic_aliases, errors_of_views, handlers_of
from redlock_django.conf.settings import load
from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.placement import (
    OUTSIDE,
    authenticates_inside_error,
    handler_permission_check,
    inner_permission_check,
    lacks_mixin,
    mixin_error,
    replay_skips_check_error,
)
from redlock_django.idempotency.settings import METHODS, IdempotentOptions, settings_of
from redlock_django.locking.services import locks
from redlock_django.web.frameworks import Framework, authenticating_framework
from redlock_django.web.request_state import records_requests
from redlock_django.web.rules import Route
from redlock_django.web.transactions import view_name


def check_idempotency(**_: Any) -> list[CheckMessage]:
    """Return E001 (invalid IDEMPOTENCY), W011 and W015 (stores), E009 to E011 (misplaced)."""
    messages: list[CheckMessage] = []
    for alias in locks:
        try:
            load(alias)
        except InvalidRedlock:
            continue  # check_settings reports it.
        try:
            messages += store_warnings(alias, settings_of(alias))
        except InvalidRedlock as error:
            messages.append(Error(str(error), id="redlock_django.E001"))
    found = errors_of_views(_route_errors)
    return messages + [message for message in found if message not in messages]


def _route_errors(route: Route) -> Iterator[CheckMessage]:
    view: Any = route.pattern.callback
    yield from _misplaced(view)
    yield from _before_authentication(view)
    yield from _stores_of(view)
    if not atomic_aliases(view):
        return
    for name, handler in handlers_of(view):
        if records_requests(handler):
            yield Error(
                f"{name} is @idempotent inside the transaction of ATOMIC_REQUESTS, so it cannot "
                "know whether the transaction was committed.",
                hint=OUTSIDE,
                id="redlock_django.E009",
            )


def _before_authentication(view: Any) -> Iterator[CheckMessage]:
    """Yield E010 for handlers and operations that a framework must not run in this way."""
    in_rest_framework = authenticating_framework(view) is Framework.REST_FRAMEWORK
    for name, handler in handlers_of(view):
        if not records_requests(handler):
            continue
        framework = authenticating_framework(handler)
        if framework is not None:
            error = authenticates_inside_error(name, framework)
            yield Error(str(error), id="redlock_django.E010")
        elif in_rest_framework and lacks_mixin(view.cls):
            yield Error(str(mixin_error(name)), id="redlock_django.E010")


def _stores_of(view: Any) -> Iterator[CheckMessage]:
    """Yield the warnings of stores that are named by a decorator, and not by the settings."""
    for _, handler in (("", view), *handlers_of(view)):
        options = getattr(handler, "idempotent_options", None)
        if isinstance(options, IdempotentOptions) and "store" in options.given:
            yield from store_warnings(options.using, options.settings())


def _misplaced(view: Any) -> Iterator[CheckMessage]:
    """Yield an error where a replay would bypass authentication or permission checks."""
    owner = getattr(view, "view_class", None) or getattr(view, "cls", None)
    if owner is None or not records_requests(view):
        return
    options = getattr(view, "idempotent_options", None)
    framework = authenticating_framework(view)
    if framework is not None:
        error = authenticates_inside_error(view_name(owner), framework)
        yield Error(str(error), id="redlock_django.E010")
    elif not getattr(options, "replay_check", None):
        try:
            methods = options.settings().methods if options is not None else METHODS
        except InvalidRedlock:
            return  # E001 reports it.
        check = inner_permission_check(view, owner) or handler_permission_check(owner, methods)
        if check is not None:
            yield Error(str(replay_skips_check_error(view, check)), id="redlock_django.E011")
