"""The scope of an idempotency key: the same key of two users is two keys."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

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
    # A site may have several user models, such as customers and staff, with overlapping pks.
    model = getattr(getattr(user, "_meta", None), "concrete_model", None)
    return UserId(str(pk), "" if model is None else model._meta.label_lower)


def scope_of(user: UserId | None, anonymous: object, tenant: object) -> str | None:
    """Return the scope, made of a user's id and of the results of the site's hooks.

    Return None if there is neither a user nor a scope for anonymous requests.
    """
    if user is not None:
        owner = ["user", user.kind, user.pk]
    elif anonymous is not None:
        owner = ["anonymous", _string(anonymous, "anonymous_scope")]
    else:
        return None
    return json.dumps([owner, [] if tenant is None else [_string(tenant, "tenant")]])


def _string(value: object, name: str) -> str:
    # An empty scope would be shared by all users, and show one user's response to another.
    if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
        return str(value)
    raise InvalidRedlock(
        f"idempotent(): {name} must return a string that is not empty, got {type(value).__name__}"
    )
