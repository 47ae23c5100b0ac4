"""`RULES`: views that the settings lock, as `@lock_resource` would; the URL patterns of a site.

A rule selects a view or a route. `LockMiddleware` makes the URL pattern resolve to the view
wrapped by `lock_resource(...)`; a request is not matched against rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from django.core.signals import setting_changed
from django.urls import URLPattern, URLResolver, get_resolver
from django.urls.resolvers import LocalePrefixPattern

from redlock_django.conf.settings import load
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.services import locks
from redlock_django.web.lock_resource import lock_resource
from redlock_django.web.options import VALUES
from redlock_django.wire.servers.address import nearest

KEYS = ("view", "path", "urlconf", "key", "using", *VALUES)
"""The keys of a rule."""

_ONLY_LOCKS = ". A rule locks a view; arguments of @idempotent are for the decorator or its mixin"

Locked = dict[URLPattern, Callable[..., Any]]


def plan(urlconf: Any = None) -> Locked:
    """Return the URL patterns that the rules of all aliases select, with their locked views.

    With `urlconf`, the `request.urlconf` of a middleware, return the patterns of that URLconf that
    are selected by rules without a URLconf of their own. Raises InvalidRedlock, which names the
    rule, for a rule that is invalid, that selects no URL pattern, or whose template needs a URL
    kwarg that a URL of the pattern does not provide.
    """
    planned: Locked = {}
    for alias in locks:
        for number, rule in enumerate(load(alias).rules, 1):
            if urlconf is not None and "urlconf" in rule:
                continue
            try:
                for pattern, view in _locked(alias, rule, urlconf):
                    if pattern in planned:
                        raise InvalidRedlock(
                            "another rule locks the same view; put all keys in one"
                        )
                    view.lock_rule = f"rule {number} of RULES in REDLOCK[{alias!r}]"
                    planned[pattern] = view
            except InvalidRedlock as error:
                named = rule.get("view") or rule.get("path")
                raise InvalidRedlock(
                    f"REDLOCK[{alias!r}]: RULES: rule {number} ({named!r}): {error}"
                ) from None
    return planned


def _locked(alias: str, rule: Mapping[str, Any], urlconf: Any) -> Iterator[tuple[URLPattern, Any]]:
    for key in rule:
        if key not in KEYS:
            raise InvalidRedlock(f"unknown key {key!r}{nearest(key, KEYS)}{_ONLY_LOCKS}")
    if ("view" in rule) == ("path" in rule):
        raise InvalidRedlock("select the view by either 'view' or 'path'")
    if not rule.get("key") or not isinstance(rule["key"], str | list | tuple):
        raise InvalidRedlock(
            "'key' must be a template such as 'order:<int:pk>', or a list of templates"
        )
    using = rule.get("using", alias)
    load(using)
    keys = [rule["key"]] if isinstance(rule["key"], str) else rule["key"]
    lock = lock_resource(
        *keys,
        using=using,
        **{name: rule[name] for name in VALUES if name in rule},
    )
    every = list(routes(urlconf or rule.get("urlconf")))
    matching = [route for route in every if _matches(rule, route)]
    if not matching and urlconf is None:
        raise InvalidRedlock("it matches no URL pattern")
    # A list of patterns that is included twice yields the same pattern twice.
    views: dict[URLPattern, Any] = {r.pattern: lock(r.pattern.callback) for r in matching}
    # A pattern that is included twice is locked in both places, even if one of them is selected.
    for route in (route for route in every if route.pattern in views):
        options = views[route.pattern].lock_options
        options.check_order(route.pattern.callback)
        for name, template in options.missing(route.kwargs):
            given = ", ".join(map(repr, sorted(route.kwargs))) or "none"
            raise InvalidRedlock(
                f"template {template!r} needs the URL kwarg {name!r}; "
                f"the URL {route.path!r} provides: {given}"
            )
    yield from views.items()


def _matches(rule: Mapping[str, Any], route: Route) -> bool:
    if "view" in rule:
        return rule["view"] in route.names
    return str(rule["path"]).removeprefix("/") == route.path.removeprefix("/")


class _Rules:
    """The rules in force: applied once, and removed when settings change."""

    def __init__(self) -> None:
        self.applied: dict[Any, Locked] = {}
        """The locked views, by the URLconf to which the rules were applied; None: ROOT_URLCONF."""

    def apply(self, urlconf: Any = None) -> None:
        """Apply the rules to ROOT_URLCONF and their own URLconfs, or to `urlconf`, once.

        Raises InvalidRedlock.
        """
        if urlconf is not None:
            self.apply()  # settings may have changed, as in tests
        if urlconf in self.applied:
            return
        planned = plan(urlconf)
        for pattern, view in planned.items():
            # `pattern.callback` stays: reverse() must still find the view by its function.
            # URLconfs may share patterns, and two threads may be here: the first one counts.
            vars(pattern).setdefault("resolve", _resolve_to(pattern, view))
        self.applied[urlconf] = planned

    def refuse_late_urlconf(self) -> None:
        """Raise InvalidRedlock if there are rules: they did not apply to `request.urlconf`."""
        if any(self.applied.values()):
            raise InvalidRedlock(
                "request.urlconf was set by a middleware after LockMiddleware, so RULES in REDLOCK "
                "did not apply. List that middleware before LockMiddleware in MIDDLEWARE"
            )

    def remove(self) -> None:
        """Make every URL pattern resolve to its own view again."""
        for pattern in chain.from_iterable(self.applied.values()):
            vars(pattern).pop("resolve", None)
        self.applied = {}


def _resolve_to(pattern: URLPattern, view: Callable[..., Any]) -> Callable[[str], Any]:
    def resolve(path: str) -> Any:
        match: Any = type(pattern).resolve(pattern, path)
        if match is not None:
            match.func = view
        return match

    return resolve


rules = _Rules()


def _settings_changed(*, setting: str, **_: Any) -> None:
    if setting in ("REDLOCK", "ROOT_URLCONF"):
        rules.remove()


setting_changed.connect(_settings_changed, dispatch_uid="redlock_django.web.rules")


@dataclass(frozen=True)
class Route:
    """One URL pattern.

    `path` is the whole route as written. `names` are the names by which a rule may select its
    view: the URL names with their namespaces, and the dotted path. `kwargs` are the names of the
    keyword arguments that the URL passes to the view, and `converters` the path converters of those
    that have one.
    """

    pattern: URLPattern
    path: str
    names: frozenset[str]
    kwargs: frozenset[str]
    converters: Mapping[str, object]


def routes(urlconf: Any = None) -> Iterator[Route]:
    """Yield every URL pattern of a URLconf and of its includes; None is ROOT_URLCONF."""
    return _below(get_resolver(urlconf), "", ("", ""), frozenset(), {})


def _below(
    resolver: URLResolver,
    path: str,
    spaces: tuple[str, str],
    kwargs: frozenset[str],
    converters: Mapping[str, object],
) -> Iterator[Route]:
    for entry in resolver.url_patterns:
        known = kwargs | entry.pattern.regex.groupindex.keys()
        # A regular expression has no converters. An argument of the site has one spelling.
        typed = {**converters, **getattr(entry.pattern, "converters", {})}
        if isinstance(entry, URLResolver):
            # A namespace is selected by the name of its instance, or by that of its app.
            inner = (spaces[0] + _space(entry.namespace), spaces[1] + _space(entry.app_name))
            typed |= entry.default_kwargs
            known |= entry.default_kwargs.keys()
            yield from _below(entry, path + _written(entry), inner, known, typed)
        else:
            names = {entry.lookup_str}
            if entry.name:
                names |= {space + entry.name for space in spaces}
            yield Route(
                entry,
                path + _written(entry),
                frozenset(names),
                frozenset(known | entry.default_args.keys()),
                typed | entry.default_args,
            )


def _space(name: str | None) -> str:
    return f"{name}:" if name else ""


def _written(entry: Any) -> str:
    # The language prefix is not part of a route: it changes from request to request.
    if isinstance(entry.pattern, LocalePrefixPattern):
        return ""
    return str(entry.pattern).removeprefix("^")
