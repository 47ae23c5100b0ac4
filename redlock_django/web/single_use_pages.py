"""Pages with a value for one visit, such as an idempotency key, which no cache may send twice.

Django's caches do not store such a page, and its header is `Cache-Control: private, no-cache`. With
`no-store`, a browser would load the page again when its user goes back after submitting a form;
with a new key, a second click would be a second submission.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.cache import patch_cache_control

from redlock_django.web.request_state import RequestState

current_page: ContextVar[HttpRequest | None] = ContextVar("redlock_request", default=None)
"""The request whose page is being made."""


class PageInProgress:
    """Make `mark_single_use` know the request whose page is made in this block.

    It is a class, because most requests need no more of this package, and a generator costs more.
    """

    __slots__ = ("_request", "_token")

    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    def __enter__(self) -> None:
        self._token = current_page.set(self._request)

    def __exit__(self, *exception: object) -> None:
        outer = self._token.old_value
        # Not reset(): a task may be closed in another context.
        current_page.set(None if outer is Token.MISSING else outer)


def mark_single_use() -> None:
    """Mark the page that is being made; does nothing outside of a request."""
    request = current_page.get()
    if request is not None:
        RequestState.of(request).single_use = True
        # UpdateCacheMiddleware and @cache_page read it after the view.
        request._cache_update_cache = False  # type: ignore[attr-defined]


def forbid_caching(state: RequestState, response: Any) -> None:
    """Set the header of a page that was marked; a response that is not rendered yet, later."""
    if not isinstance(response, HttpResponseBase):
        return
    if getattr(response, "is_rendered", True) is False:
        response.add_post_render_callback(lambda rendered: forbid_caching(state, rendered))  # type: ignore[attr-defined]
    elif state.single_use:
        patch_cache_control(response, private=True, no_cache=True)
