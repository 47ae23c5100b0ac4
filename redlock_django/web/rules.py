"""`RULES`: views that settings put under a lock, as the decorator would.

A rule names a view or a route; `LockMiddleware` has its URL pattern resolve to the view wrapped
by `lock_resource(...)`. Nothing else happens at a request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from django.core.signals import setting_changed
from django.urls import URLPattern

from redlock_django.conf.settings import load
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.handler import locks
from redlock_django.web.lock_resource import lock_resource
from redlock_django.web.routes import Route, routes
from redlock_django.wire.address import nearest

KEYS = ("view", "path", "urlconf", "key", "methods", "ttl", "wait", "using", "status")
"""What a rule may say."""


Locked = dict[URLPattern, Callable[..., Any]]


def plan() -> Locked:
    """Give each URL pattern that a rule of any alias is about, with its view under the lock.

    Raises InvalidRedlock, which names the rule, for one that says something wrong, matches no
    URL pattern, or asks for a URL kwarg that its pattern does not give.
    """
    planned: Locked = {}
    for alias in locks:
        for position, rule in enumerate(load(alias).rules, 1):
            try:
                for pattern, view in _locked(alias, rule):
                    if pattern in planned:
                        raise InvalidRedlock("another rule locks it already; give all keys to one")
                    planned[pattern] = view
            except InvalidRedlock as error:
                named = rule.get("view") or rule.get("path")
                raise InvalidRedlock(
                    f"REDLOCK[{alias!r}]: RULES: rule {position} ({named!r}): {error}"
                ) from None
    return planned


def _locked(alias: str, rule: Mapping[str, Any]) -> Iterator[tuple[URLPattern, Callable[..., Any]]]:
    for key in rule:
        if key not in KEYS:
            raise InvalidRedlock(f"unknown key {key!r}{nearest(key, KEYS)}")
    if ("view" in rule) == ("path" in rule):
        raise InvalidRedlock("name the view by 'view' or by 'path'")
    if not rule.get("key") or not isinstance(rule["key"], str | list | tuple):
        raise InvalidRedlock("'key' must be a template such as 'order:<pk>', or a list of them")
    using = rule.get("using", alias)
    load(using)
    keys = [rule["key"]] if isinstance(rule["key"], str) else rule["key"]
    lock = lock_resource(
        *keys,
        using=using,
        **{name: rule[name] for name in ("methods", "ttl", "wait", "status") if name in rule},
    )
    matching = [route for route in routes(rule.get("urlconf")) if _matches(rule, route)]
    if not matching:
        raise InvalidRedlock("no URL pattern matches it")
    # A list of patterns that is included twice is there twice.
    views: dict[URLPattern, Any] = {r.pattern: lock(r.pattern.callback) for r in matching}
    for route in matching:
        for name, template in views[route.pattern].lock_options.missing(route.kwargs):
            given = ", ".join(map(repr, sorted(route.kwargs))) or "none"
            raise InvalidRedlock(
                f"template {template!r} needs the URL kwarg {name!r}; "
                f"the URL {route.path!r} gives: {given}"
            )
    yield from views.items()


def _matches(rule: Mapping[str, Any], route: Route) -> bool:
    if "view" in rule:
        return rule["view"] in route.names
    return str(rule["path"]).removeprefix("/") == route.path.removeprefix("/")


class _Rules:
    """The rules in force: put on once, taken off when settings change."""

    def __init__(self) -> None:
        self._on: Locked | None = None
        self._changing = threading.Lock()

    def apply(self) -> None:
        """Put the rules on, unless they are. Raises InvalidRedlock."""
        if self._on is not None:
            return
        with self._changing:
            planned = plan()
            for pattern, view in planned.items():
                # Not `pattern.callback`: reverse() must still find the view by its function.
                vars(pattern)["resolve"] = _resolving(pattern, view)
            self._on = planned

    def take_off(self) -> None:
        """Give every URL pattern its own view back."""
        with self._changing:
            for pattern in self._on or ():
                del vars(pattern)["resolve"]
            self._on = None


def _resolving(pattern: URLPattern, view: Callable[..., Any]) -> Callable[[str], Any]:
    def resolve(path: str) -> Any:
        match: Any = type(pattern).resolve(pattern, path)
        if match is not None:
            match.func = view
        return match

    return resolve


rules = _Rules()


def _settings_changed(*, setting: str, **_: Any) -> None:
    if setting in ("REDLOCK", "ROOT_URLCONF"):
        rules.take_off()


setting_changed.connect(_settings_changed, dispatch_uid="redlock_django.web.rules")
