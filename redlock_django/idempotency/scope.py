"""The scope of an idempotency key: the same key of two users is two keys."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from django.http import HttpRequest
from django.http.request import split_domain_port

from redlock_django.exceptions import InvalidRedlock


class UserId(NamedTuple):
    """The user who is logged in: `pk` as a string, and the `kind` of user it belongs to."""

    pk: str
    kind: str


def user_of(user: Any) -> UserId | None:
    """Return the stable id of a user who is logged in, else None.

    It is not derived from the token or the session, so a client that renews them keeps its keys.
    """
    if user is None or not getattr(user, "is_authenticated", False):
        return None
    pk = getattr(user, "pk", None)
    if pk is None:
        raise InvalidRedlock(
            f"idempotent(): the user, of type {type(user).__name__}, is logged in and has no pk. "
            "Give it a pk that is the same in every request"
        )
    return UserId(str(pk), _kind_of(user.__class__))  # of a lazy user, the class of the real one


def _kind_of(user_class: Any) -> str:
    # A site may have several kinds of users, such as customers, staff and API clients, with
    # overlapping pks. Not all of them are models.
    model = getattr(getattr(user_class, "_meta", None), "concrete_model", None)
    if model is not None:
        return f"model {model._meta.label_lower}"
    return f"class {user_class.__module__}.{user_class.__qualname__}"


def host_of(request: HttpRequest) -> str:
    """Return the host name that a request was sent to, without its port.

    Raises DisallowedHost if ALLOWED_HOSTS does not contain it.
    """
    return split_domain_port(request.get_host())[0]


def scope_of(user: UserId | None, anonymous: object, tenant: object, host: str) -> str | None:
    """Return the scope, made of a user's id and of the results of the site's hooks.

    Without a `tenant` (None), each host has keys of its own. Return None if there is neither a user
    nor a scope for anonymous requests.
    """
    if user is not None:
        owner = ["user", user.kind, user.pk]
    elif anonymous is not None:
        owner = ["anonymous", _string(anonymous, "anonymous_scope")]
    else:
        return None
    part = ["host", host] if tenant is None else ["tenant", _string(tenant, "tenant")]
    return json.dumps([owner, part])


def _string(value: object, name: str) -> str:
    # An empty scope would be shared by all users, and show one user's response to another.
    if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
        return str(value)
    raise InvalidRedlock(
        f"idempotent(): {name} must return a string that is not empty, got {type(value).__name__}"
    )
