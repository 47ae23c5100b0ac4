"""The user of a request: the same one for sync views, async views and REST framework.

`request.user` is the authority, because everything that authenticates a request sets it: Django's
`login()` and `alogin()`, middleware for tokens or impersonation, REST framework. Django's
`request.auser()` reads the session and does not notice that `request.user` was replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from asgiref.sync import sync_to_async

from redlock_django.exceptions import InvalidRedlock
from redlock_django.web.ninja import operation_of

_DJANGO = "django.contrib.auth.middleware"


def request_user(request: Any) -> Any:
    """Return `request.user`, or None if nothing has set it."""
    return getattr(request, "user", None)


async def arequest_user(request: Any) -> Any:
    """Return the user of an async view's request, or None if nothing has set it.

    Raises InvalidRedlock if a middleware has replaced `request.auser` and not `request.user`.
    """
    # In a thread, because the first use of request.user may query the database.
    user = await sync_to_async(_loaded_user)(request)
    auser = getattr(request, "auser", None)
    if auser is None or _reads_session(auser):
        return user
    replaced = await auser()
    if user is not None and _identity(user) != _identity(replaced):
        raise InvalidRedlock(
            "request.user and request.auser() are different users. A middleware that sets "
            "request.auser must set request.user to the same user"
        )
    return replaced


class Framework(Enum):
    """A framework that authenticates the user inside of its views."""

    REST_FRAMEWORK = "REST framework"
    NINJA = "django-ninja"


def authenticating_framework(view: Callable[..., Any], owner: object = None) -> Framework | None:
    """Return the framework that authenticates the user inside of a view, or None.

    `owner` is the instance whose method the view is, or None.
    """
    view_class = getattr(view, "cls", None) or getattr(view, "view_class", None) or type(owner)
    if hasattr(view_class, "initialize_request"):
        return Framework.REST_FRAMEWORK
    return Framework.NINJA if getattr(operation_of(view), "auth_callbacks", None) else None


def _loaded_user(request: Any) -> Any:
    user = request_user(request)
    getattr(user, "is_authenticated", None)  # loads a lazy user
    return user


def _reads_session(auser: Any) -> bool:
    """Return whether `request.auser` is the one that AuthenticationMiddleware has set."""
    return getattr(getattr(auser, "func", None), "__module__", "") == _DJANGO


def _identity(user: Any) -> tuple[object, ...]:
    # A lazy user reports the class of the user that it loads.
    return user.__class__, getattr(user, "is_authenticated", False), getattr(user, "pk", None)
