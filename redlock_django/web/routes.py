"""The URL patterns of a site as a flat list, with their names and URL kwargs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver
from django.urls.resolvers import LocalePrefixPattern


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
