"""System checks: what settings and URLs already show to be wrong. No network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import import_string

from redlock_django.conf import load
from redlock_django.exceptions import InvalidRedlock
from redlock_django.handler import locks
from redlock_django.locked_call import LockTerms
from redlock_django.middleware import LockMiddleware
from redlock_django.routes import Route, routes
from redlock_django.rules import plan
from redlock_django.transactions import OUTSIDE, sees_commits, view_name

TAG = "redlock"


@register(TAG)
def check_settings(**_: Any) -> list[CheckMessage]:
    """E001: an alias of REDLOCK is wrong. E002: a rule is. E003: rules without the middleware."""
    errors: list[CheckMessage] = []
    has_rules = False
    # Nothing at all is told as a missing "default" is.
    for alias in list(locks) or ["default"]:
        try:
            has_rules |= bool(load(alias).rules)
        except InvalidRedlock as error:
            errors.append(Error(str(error), id="redlock_django.E001"))
    if errors or not has_rules:
        return errors
    try:
        plan()
    except InvalidRedlock as error:
        errors.append(Error(str(error), id="redlock_django.E002"))
    if not _has_middleware():
        errors.append(
            Error(
                "REDLOCK has RULES, but nothing puts them on.",
                hint="Add 'redlock_django.middleware.LockMiddleware' to MIDDLEWARE.",
                id="redlock_django.E003",
            )
        )
    return errors


@register(TAG, deploy=True)
def check_secrets(**_: Any) -> list[CheckMessage]:
    """W001: Django's debug page and error mails would show a password."""
    return [
        checks.Warning(
            f"REDLOCK[{alias!r}]: MASTERS: master {position} has a password in its URL, which "
            "Django's debug page and error mails show.",
            hint="Move it to OPTIONS: {'password': ...}, which they mask.",
            id="redlock_django.W001",
        )
        for alias in locks
        for position, url in enumerate(_urls(settings.REDLOCK[alias]), 1)
        if _has_password(url)
    ]


def _urls(section: Any) -> list[Any]:
    masters = section.get("MASTERS", ()) if isinstance(section, Mapping) else ()
    return masters.split(",") if isinstance(masters, str) else list(masters)


def _has_password(url: object) -> bool:
    try:
        return bool(urlsplit(str(url)).password)
    except ValueError:
        return False  # E001 tells of it


@register(TAG)
def check_views(**_: Any) -> list[CheckMessage]:
    """E004: an unknown URL kwarg. E005, E006: a lock comes too late. E007: an async template."""
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
    atomic = [
        alias
        for alias in connections
        if connections[alias].settings_dict["ATOMIC_REQUESTS"]
        and alias not in getattr(view, "_non_atomic_requests", ())
    ]
    for name, handler in _handlers(view):
        yield from _wrong_terms(name, handler, route)
        if not (hasattr(handler, "lock_terms") and atomic):
            continue
        if not _has_middleware():
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


def _wrong_terms(name: str, view: Any, route: Route) -> Iterator[CheckMessage]:
    terms: LockTerms | None = getattr(view, "lock_terms", None)
    if terms is None:
        return
    try:
        terms.check()
    except InvalidRedlock as error:
        yield Error(f"{name}: {error}", id="redlock_django.E008")
    for template in terms.templates:
        if template.is_async and not iscoroutinefunction(view):
            yield Error(
                f"{name} is a sync view, and its template {template.text!r} a coroutine function.",
                id="redlock_django.E007",
            )
    for kwarg, template_text in terms.missing(route.kwargs):
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


def _has_middleware() -> bool:
    for path in settings.MIDDLEWARE:
        try:
            middleware = import_string(path)
        except (ImportError, ImproperlyConfigured):
            continue
        if isinstance(middleware, type) and issubclass(middleware, LockMiddleware):
            return True
    return False
