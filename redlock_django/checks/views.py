"""Checks of every locked view: URL kwargs, sync or async templates, transactions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from redlock_django.checks.aliases import valid_aliases
from redlock_django.checks.handlers import (
    ViewHandler,
    handlers_of,
    is_async_view,
    transactions_around,
)
from redlock_django.checks.lock_order import (
    conditions_before_lock,
    decorators_outside_transaction,
    locked_twice,
    login_inside_lock,
    lost_exclusions,
    refused_decorators,
)
from redlock_django.checks.middleware import revision_databases
from redlock_django.conf.settings import lock_middlewares
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.services import locks
from redlock_django.locking.transactions.open_transactions import READ_COMMITTED
from redlock_django.web.name_templates import Template
from redlock_django.web.options import LockOptions
from redlock_django.web.rules import Locked, Route, plan, routes
from redlock_django.web.transactions import OUTSIDE, transaction_marker, view_name
from redlock_django.web.view_kinds import opens_transaction, records_requests


def check_views(**_: Any) -> list[CheckMessage]:
    """Return errors for views whose lock cannot work.

    W013: values with several spellings. E004: unknown URL kwarg. E005, E006: lock acquired inside a
    transaction. E007: async template on a sync view. E008: options that the alias does not allow.
    E012: locked before django-ninja authenticates the user, or `<user.pk>` read before REST
    framework does. W014: a login check inside the lock. W016: a decorator
    outside of the transaction. W017: a middleware with a transaction. W049: a
    template that is locked with two limits.
    E055: a handler that locks what a lock around it holds. W057: If-Match is compared before the
    lock. E061: decorators of a class that every request refuses. E062: an async
    view under ATOMIC_REQUESTS. W063: an exclusion of ATOMIC_REQUESTS that has no effect.
    """
    errors = partial(_route_errors, planned=_planned(), invalid=_invalid_aliases())
    return [*_old_data(), *errors_of_views(errors), *_two_limits()]


def check_isolation(databases: Collection[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Return E006 and W017 where only the server knows that a transaction may read older data.

    It connects to `databases`, so it has the tag of Django's own checks that do (`check --database
    ALIAS`). From Django 6.1 on, every check is given all databases, also without that option.
    """
    known = _old_data()
    return [message for message in _old_data(databases or ()) if message not in known]


def _old_data(databases: Collection[str] = ()) -> list[CheckMessage]:
    """Return E006 and W017; `databases` are asked for their isolation levels."""
    check = partial(_old_data_in_views, planned=_planned(), databases=databases)
    views = errors_of_views(check)
    return [*_transaction_middleware(databases), *views]


def _transaction_middleware(databases: Collection[str]) -> Iterator[CheckMessage]:
    """Yield W017 for a known middleware in whose transaction locks are refused."""
    for name, alias in revision_databases():
        if not sees_commits(connections[alias], databases):
            yield checks.Warning(
                f"MIDDLEWARE: {name} opens a transaction around every view. On the database "
                f"{alias!r} it may read data from before a lock, so locks of views are refused "
                "inside of it.",
                hint="Remove it, and use reversion.views.create_revision below @lock_resource; "
                "or use PostgreSQL at READ COMMITTED.",
                id="redlock_django.W017",
            )


def _two_limits() -> Iterator[CheckMessage]:
    """Yield W049 for a template that two views lock with different limits."""
    first: dict[tuple[str, Hashable], tuple[str, int]] = {}
    for name, template, options in _locked_templates():
        limit = options.limit or 1
        key = (options.using, template.identity)
        other, others = first.setdefault(key, (name, limit))
        if limit != others:
            yield checks.Warning(
                f"{name} locks {template.text!r} {_with_limit(limit)}, and {other} locks it "
                f"{_with_limit(others)}. So {max(limit, others)} clients may hold it at once.",
                hint="Lock one template with one limit everywhere.",
                id="redlock_django.W049",
            )


def _with_limit(limit: int) -> str:
    return "without a limit" if limit == 1 else f"with limit={limit}"


def _locked_templates() -> Iterator[tuple[str, Template, LockOptions]]:
    """Yield each template that a view locks: the name of the view, the template, the options."""
    planned = _planned()
    if not getattr(settings, "ROOT_URLCONF", None):
        return
    seen: set[Any] = set()  # a view may be at several URLs
    for route in routes():
        view: Any = route.pattern.callback
        locked = planned.get(route.pattern, view)
        handlers = [(handler.name, handler.function) for handler in handlers_of(view)]
        for name, function in [(view_name(view), locked), *handlers]:
            options: LockOptions | None = getattr(function, "lock_options", None)
            if options is None or (name, id(options)) in seen:
                continue
            seen.add((name, id(options)))
            for template in options.templates:
                yield name, template, options


def errors_of_views(check: Callable[[Route], Iterable[CheckMessage]]) -> list[CheckMessage]:
    """Return the errors that a check finds in the URL patterns of the site.

    A view at several URLs is reported once, unless the URLs pass different kwargs.
    """
    errors: list[CheckMessage] = []
    if getattr(settings, "ROOT_URLCONF", None):
        for route in routes():
            errors += [error for error in check(route) if error not in errors]
    return errors


def sees_commits(connection: BaseDatabaseWrapper, databases: Collection[str] = ()) -> bool:
    """Return what `sees_commits` of `locking.transactions` will find, as far as is known.

    Only a database among `databases` is connected to. A level that the role or the server sets
    instead of OPTIONS is otherwise found where the lock is acquired.
    """
    if connection.vendor != "postgresql":
        return False
    if connection.alias in databases:
        with connection.cursor() as cursor:
            cursor.execute("SHOW default_transaction_isolation")
            return cursor.fetchone()[0] in READ_COMMITTED
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    options = connection.settings_dict["OPTIONS"]
    level = options.get("isolation_level")
    is_in_options = "isolation" in str(options.get("options", ""))
    return not is_in_options and level in (
        None,
        IsolationLevel.READ_COMMITTED,
        IsolationLevel.READ_UNCOMMITTED,
    )


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
    yield from decorators_outside_transaction(view)
    yield from lost_exclusions(view)
    handlers = list(handlers_of(view))
    yield from conditions_before_lock(view, handlers)
    yield from login_inside_lock(view, handlers, rule=planned.get(route.pattern))
    yield from refused_decorators(view, handlers)
    if route.pattern in planned:
        yield from option_errors(view_name(view), planned[route.pattern], route)
    for function in (view, *(handler.function for handler in handlers)):
        if options := getattr(function, "lock_options", None):
            try:
                options.check_order(function)
            except InvalidRedlock as error:
                yield Error(str(error), id="redlock_django.E012")
    around = planned.get(route.pattern, view)
    yield from _async_under_transactions(around, handlers)
    for handler in handlers:
        kwargs = route.kwargs | handler.given.keys()
        given = replace(route, kwargs=kwargs, converters={**route.converters, **handler.given})
        yield from option_errors(handler.name, handler.function, given)
        yield from locked_twice(around, handler)
        if not hasattr(handler.function, "lock_options") or lock_middlewares():
            continue
        for opener in dict.fromkeys(transactions_around(around, handler).values()):
            yield Error(
                f"{handler.name} acquires its lock inside the transaction of {opener}, and only "
                "LockMiddleware can answer a lock error after rollback.",
                hint="Add 'redlock_django.middleware.LockMiddleware' to MIDDLEWARE. Or better: "
                + OUTSIDE,
                id="redlock_django.E005",
            )


def _async_under_transactions(view: Any, handlers: Iterable[ViewHandler]) -> Iterator[CheckMessage]:
    """Yield E062 for an async view that is locked or idempotent, under ATOMIC_REQUESTS."""
    functions = [view, *(handler.function for handler in handlers)]
    aliases = transaction_marker(view).atomic_aliases() if is_async_view(view) else []
    if aliases and any(opens_transaction(each) or records_requests(each) for each in functions):
        yield Error(
            f"{view_name(view)} is an async view, and ATOMIC_REQUESTS is True for the database "
            f"{aliases[0]!r}, so every request to it fails.",
            hint="Put @transaction.non_atomic_requests above @lock_resource and @idempotent (of a "
            "class: on dispatch, first in the list of @method_decorator), or set ATOMIC_REQUESTS "
            "to False.",
            id="redlock_django.E062",
        )


def _old_data_in_views(
    route: Route, planned: Locked, databases: Collection[str]
) -> Iterator[CheckMessage]:
    """Yield E006 for a lock inside a transaction that may read data from before it."""
    view: Any = route.pattern.callback
    for handler in handlers_of(view):
        options: LockOptions | None = getattr(handler.function, "lock_options", None)
        if options is None:
            continue
        around = transactions_around(planned.get(route.pattern, view), handler)
        for alias, opener in around.items():
            if not sees_commits(connections[alias], databases):
                yield Error(
                    f"{handler.name} acquires its lock inside the transaction of {opener}. On the "
                    f"database {alias!r} that transaction may read data from before the lock.",
                    hint=OUTSIDE,
                    id="redlock_django.E006",
                )


def _option_errors(
    name: str, view: Any, route: Route, *, invalid: Collection[str]
) -> Iterator[CheckMessage]:
    if hasattr(view, "needs_view"):
        yield Error(
            f"{route.path!r}: lock_resource() has got a view instead of a template, so it returned "
            "a decorator.",
            hint="Write lock_resource('order:<int:pk>')(view).",
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
