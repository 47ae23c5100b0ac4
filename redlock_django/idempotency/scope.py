"""Whose an idempotency key is: two users may choose the same one and never meet."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from redlock_django.exceptions import InvalidRedlock


class UserId(NamedTuple):
    """Who is logged in: `pk` as text, and the `kind` of user that it counts."""

    pk: str
    kind: str


def user_of(user: Any) -> UserId | None:
    """Give the stable id of a user who is logged in, None for anybody else.

    Never the token or the session: a client that renews them goes on with its keys.
    """
    if user is None or not getattr(user, "is_authenticated", False):
        return None
    pk = getattr(user, "pk", None)
    if pk is None:
        raise InvalidRedlock(
            f"idempotent(): a user of type {type(user).__name__} is logged in and has no pk; "
            "give them one that stays the same from request to request"
        )
    # A site may know customers and staff, each counted from 1.
    model = getattr(getattr(user, "_meta", None), "concrete_model", None)
    return UserId(str(pk), "" if model is None else model._meta.label_lower)


def scope_of(user: UserId | None, anonymous: object, tenant: object) -> str | None:
    """Put the scope together from a user's id and what callables of the site said.

    None where there is neither a user nor a scope for anonymous requests.
    """
    if user is not None:
        who = ["user", user.kind, user.pk]
    elif anonymous is not None:
        who = ["anonymous", _text(anonymous, "anonymous_scope")]
    else:
        return None
    return json.dumps([who, [] if tenant is None else [_text(tenant, "tenant")]])


def _text(value: object, name: str) -> str:
    # One scope for everybody is the mistake that shows one user's response to another.
    if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
        return str(value)
    raise InvalidRedlock(
        f"idempotent(): {name} must give a text that is not empty, got {type(value).__name__}"
    )
