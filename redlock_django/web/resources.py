"""Templates such as "order:<int:pk>", which make a resource name from a request or from values."""

from __future__ import annotations

import hashlib
import inspect
import re
import unicodedata
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any

from django.http import HttpRequest

from redlock_django.exceptions import BadResource, InvalidRedlock
from redlock_django.locking.names import HASH_MARK, check_resource, encode
from redlock_django.web.placeholders import Slot, parse, written
from redlock_django.web.request_user import arequest_user, request_user
from redlock_django.web.request_values import BODY_SOURCES, RequestValues

Computed = Callable[..., str | Awaitable[str]]
"""A callable `(request, **kwargs)` that returns a resource name; async views may use async ones."""

LONGEST_RENDERED = 200
"""Bytes of UTF-8. A longer name is cut and ends in a hash."""


class Template:
    """The rule that makes a resource name: a string with placeholders, or a callable.

    `<slug>` and `<int:pk>` are URL kwargs, unchanged or through a Django path converter. The other
    sources are `<user.pk>`, and `header`, `get`, `post` and `json`, as in `<int:post:order>`,
    `<uuid:json:a.b>` or, without a converter, `<header:X-Tenant>`. A converter makes one name of
    all spellings of a value, such as "7" and "07", or refuses them. Values are percent-encoded, so
    that different values never make the same name. A name over 200 bytes keeps its beginning and
    ends in a hash of the whole name. `names` are the URL kwargs that the template needs;
    `needs_request` is whether it also reads the request, and `needs_user` whether it reads the
    request's user, `needs_body` its body. Raises InvalidRedlock for a malformed string.
    """

    def __init__(self, source: str | Computed) -> None:
        self.names: frozenset[str] = frozenset()
        self.needs_request = True
        self.needs_user = False
        self.needs_body = False
        self.is_async = inspect.iscoroutinefunction(source)
        self._computed: Computed | None = None
        if isinstance(source, str):
            self.text = source
            self._start, self._rest = parse(source)
            self._slots = [slot for slot, _ in self._rest]
            self._keys = {slot.key for slot in self._slots}
            self.names = frozenset(s.name for s in self._slots if s.source == "url")
            self.needs_request = any(s.source != "url" for s in self._slots)
            self.needs_user = any(s.source == "user" for s in self._slots)
            self.needs_body = any(s.source in BODY_SOURCES for s in self._slots)
        elif callable(source):
            self.text = getattr(source, "__qualname__", repr(source))
            self._slots = []
            self._computed = source
        else:
            raise InvalidRedlock(
                f"a resource template must be a string or a callable, got {type(source).__name__}"
            )

    def __repr__(self) -> str:
        return f"Template({self.text!r})"

    def render(self, request: HttpRequest, kwargs: Mapping[str, Any]) -> str:
        """Return the resource name for this request and its URL kwargs.

        Raises BadResource if the client's value is missing or invalid, and InvalidRedlock if the
        site cannot provide a value, because a URL kwarg or a middleware is missing.
        """
        if self._computed:
            return self._check(self._computed(request, **kwargs))
        user = self._known(request, request_user(request)) if self.needs_user else None
        return self._join(_values(request, kwargs, user))

    async def arender(self, request: HttpRequest, kwargs: Mapping[str, Any]) -> str:
        """Return the resource name as `render` does, in an async view."""
        if self._computed:
            result = self._computed(request, **kwargs)
            return self._check(await result if inspect.isawaitable(result) else result)
        user = self._known(request, await arequest_user(request)) if self.needs_user else None
        return self._join(_values(request, kwargs, user))

    def unconverted(self, converters: Mapping[str, object]) -> list[str]:
        """Return the placeholders that may have several spellings of one value, as written.

        `converters` are those of the URL. They are placeholders without a converter that read the
        request, or an id from a part of the URL that is any text.
        """
        return [slot.text for slot in self._slots if slot.has_spellings(converters)]

    def render_values(self, values: Mapping[str, Any]) -> str:
        """Return the resource name for plain values, by the names of the placeholders."""
        if self._computed:
            raise InvalidRedlock("resource() needs a string; call a callable template directly")
        if missing := self._keys - values.keys():
            raise InvalidRedlock(f"template {self.text!r} needs a value for {_quoted(missing)}")
        if unknown := values.keys() - self._keys:
            raise InvalidRedlock(f"template {self.text!r} has no placeholder {_quoted(unknown)}")
        return self._join(lambda slot: values[slot.key])

    def _known(self, request: HttpRequest, user: Any) -> Any:
        if user is None and not hasattr(request, "user"):
            raise InvalidRedlock(
                f"template {self.text!r} needs AuthenticationMiddleware in MIDDLEWARE"
            )
        return user

    def _check(self, name: object) -> str:
        if inspect.iscoroutine(name):
            name.close()
        if not isinstance(name, str):
            raise InvalidRedlock(
                f"the resource callable {self.text!r} must return str, got {type(name).__name__}"
            )
        try:
            return check_resource(name)
        except BadResource as error:
            raise InvalidRedlock(f"the resource callable {self.text!r}: {error}") from None

    def _join(self, value_of: Callable[[Slot], object]) -> str:
        name = self._start
        for slot, literal in self._rest:
            name += encode(written(slot, value_of(slot))) + literal
        return check_resource(_shortened(name))


def template_of(source: str | Computed) -> Template:
    """Return the template that a string or a callable makes; a string is parsed once."""
    return _parsed(source) if isinstance(source, str) else Template(source)


@lru_cache(maxsize=1000)
def _parsed(text: str) -> Template:
    return Template(text)


def resource(template: str, **values: object) -> str:
    """Return the resource name that a view with this template locks.

    For tasks, the shell and tests: `resource("order:<int:pk>", pk=7)`. A value for another source
    is named without its converter: `**{"user.pk": 7, "post:order": 7}`. Raises InvalidRedlock for a
    malformed template and for a missing or unknown value, and BadResource for a value that is empty
    or does not match its converter.
    """
    return template_of(template).render_values(values)


def _quoted(names: Any) -> str:
    return ", ".join(repr(name) for name in sorted(names))


def _values(request: HttpRequest, kwargs: Mapping[str, Any], user: Any) -> Callable[[Slot], object]:
    """Return the function that reads the value of a placeholder from one request."""
    values = RequestValues(request)

    def value_of(slot: Slot) -> object:
        match slot.source:
            case "url":
                if slot.name not in kwargs:
                    given = _quoted(kwargs) or "none"
                    raise InvalidRedlock(
                        f"<{slot.text}> needs a URL kwarg; the URL provides: {given}"
                    )
                return kwargs[slot.name]
            case "user":
                return getattr(user, "pk", None)
        return values.read(slot.source, slot.name, slot.text)

    return value_of


def _shortened(name: str) -> str:
    full = unicodedata.normalize("NFC", name).encode()
    if len(full) <= LONGEST_RENDERED:
        return name
    digest = hashlib.sha256(full).hexdigest()
    head = full[: LONGEST_RENDERED - len(digest) - 1].decode(errors="ignore")
    return re.sub("%[0-9A-F]?$", "", head) + HASH_MARK + digest
