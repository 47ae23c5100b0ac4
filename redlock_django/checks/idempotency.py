"""Checks of the IDEMPOTENCY settings, of their databases, and of `@idempotent` views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.core import checks
from django.core.checks import CheckMessage
from django.db import router

from redlock_django.checks.aliases import valid_aliases
from redlock_django.checks.handlers import handlers_of
from redlock_django.checks.views import errors_of_views
from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.placement import (
    authenticates_inside_error,
    handler_permission_check,
    inner_permission_check,
    lacks_mixin,
    mixin_error,
    replay_skips_check_error,
)
from redlock_django.idempotency.settings import METHODS, settings_of
from redlock_django.models import IdempotencyRecord
from redlock_django.web.rules import Route
from redlock_django.web.view_kinds import (
    Framework,
    authenticating_framework,
    class_of,
    records_requests,
    view_name,
)


def check_idempotency(**_: Any) -> list[CheckMessage]:
    """Return the messages about IDEMPOTENCY, its database and its views.

    E001: invalid. W015: a database that no view writes to. E010 and E011: misplaced.
    """
    messages: list[CheckMessage] = []
    for options in valid_aliases():
        try:
            messages += _database_warnings(options.alias, settings_of(options.alias).database)
        except InvalidRedlock as error:
            messages.append(checks.Error(str(error), id="redlock_django.E001"))
    return [*messages, *errors_of_views(_route_errors)]


def _route_errors(route: Route) -> Iterator[CheckMessage]:
    view: Any = route.pattern.callback
    yield from _misplaced(view)
    yield from _before_authentication(view)


def _before_authentication(view: Any) -> Iterator[CheckMessage]:
    """Yield E010 for handlers and operations that a framework must not run in this way."""
    in_rest_framework = authenticating_framework(view) is Framework.REST_FRAMEWORK
    for name, handler, *_ in handlers_of(view):
        if not records_requests(handler):
            continue
        framework = authenticating_framework(handler)
        if framework is not None:
            error = authenticates_inside_error(name, framework)
            yield checks.Error(str(error), id="redlock_django.E010")
        elif in_rest_framework and lacks_mixin(view.cls):
            yield checks.Error(str(mixin_error(name)), id="redlock_django.E010")


def _misplaced(view: Any) -> Iterator[CheckMessage]:
    """Yield an error where a replay would bypass authentication or permission checks."""
    owner = class_of(view)
    if owner is None or not records_requests(view):
        return
    options = getattr(view, "idempotent_options", None)
    framework = authenticating_framework(view)
    if framework is not None:
        error = authenticates_inside_error(view_name(owner), framework)
        yield checks.Error(str(error), id="redlock_django.E010")
    elif not getattr(options, "replay_check", None):
        try:
            methods = options.settings().methods if options is not None else METHODS
        except InvalidRedlock:
            return  # E001 reports it.
        check = inner_permission_check(view, owner) or handler_permission_check(owner, methods)
        if check is not None:
            yield checks.Error(str(replay_skips_check_error(view, check)), id="redlock_django.E011")


def _database_warnings(alias: str, database: str) -> Iterator[CheckMessage]:
    """Yield W015 for records in a database that other models are not written to."""
    elsewhere = {
        model._meta.label: written
        for model in apps.get_models()
        if model._meta.managed
        and model is not IdempotencyRecord
        and (written := router.db_for_write(model)) != database
    }
    if not elsewhere:
        return
    label, written = next(iter(elsewhere.items()))
    others = f" and {len(elsewhere) - 1} more" if len(elsewhere) > 1 else ""
    yield checks.Warning(
        f"REDLOCK[{alias!r}]: IDEMPOTENCY: records are in DATABASE {database!r}, but "
        f"{label}{others} is written to {written!r}. A record is not committed together with that, "
        "so a retry may be executed again.",
        hint="Set DATABASE to the database that the idempotent views write to; another alias of "
        "REDLOCK, used with idempotent(using=...), may name another one.",
        id="redlock_django.W015",
    )
