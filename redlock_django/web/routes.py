"""The URL patterns of a site, flat: what each is called, and which kwargs it gives its view."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver
from django.urls.resolvers import LocalePrefixPattern


@dataclass(frozen=True)
class Route:
    """One URL pattern.

    `path` is the whole route as written, `names` are all a rule may call its view by (URL names
    with their namespaces, and the dotted path), and `kwargs` what the URL gives the view.
    """

    pattern: URLPattern
    path: str
    names: frozenset[str]
    kwargs: frozenset[str]


def routes(urlconf: str | None = None) -> Iterator[Route]:
    """Walk a URLconf, None for ROOT_URLCONF, through all that it includes."""
    return _below(get_resolver(urlconf), "", ("", ""), frozenset())


def _below(
    resolver: URLResolver, path: str, spaces: tuple[str, str], kwargs: frozenset[str]
) -> Iterator[Route]:
    for entry in resolver.url_patterns:
        known = kwargs | entry.pattern.regex.groupindex.keys()
        if isinstance(entry, URLResolver):
            # An instance of an app is called by its own name, or by that of the app.
            inner = (spaces[0] + _space(entry.namespace), spaces[1] + _space(entry.app_name))
            yield from _below(
                entry, path + _written(entry), inner, known | entry.default_kwargs.keys()
            )
        else:
            names = {entry.lookup_str}
            if entry.name:
                names |= {space + entry.name for space in spaces}
            yield Route(
                entry,
                path + _written(entry),
                frozenset(names),
                frozenset(known | entry.default_args.keys()),
            )


def _space(name: str | None) -> str:
    return f"{name}:" if name else ""


def _written(entry: Any) -> str:
    # The language is no part of a route: it changes from request to request.
    if isinstance(entry.pattern, LocalePrefixPattern):
        return ""
    return str(entry.pattern).removeprefix("^")
