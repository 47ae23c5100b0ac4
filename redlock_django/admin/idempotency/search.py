"""The search for the records of a client's key in the list of idempotency records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement

from django.conf import settings as django_settings
from django.contrib.auth import get_user_model
from django.http import HttpRequest

from redlock_django.exceptions import InvalidRedlock, KeyInvalid
from redlock_django.idempotency.key import (
    host_of,
    parse_key,
    provider_scope,
    request_hashes,
    scope_of,
    user_of,
)
from redlock_django.idempotency.settings import settings_of

MAX_WORDS = 8
"""The most words of a search that are read as the key of a client."""


def key_hashes(request: HttpRequest, using: str, text: str) -> list[str]:
    """Return the hashes of a client's key, for a search for "OWNER KEY" or "OWNER PART KEY".

    OWNER is a user id, a value of `anonymous_scope` or a `scope`. PART is the host or the tenant
    that the key belongs to; without it, the host that the admin was opened on and the names in
    ALLOWED_HOSTS. A key with a `scope` belongs to no host. Return none for other searches. Keys of
    users that are not of AUTH_USER_MODEL are not found.
    """
    try:
        secrets = settings_of(using).secrets
    except InvalidRedlock:
        return []  # E001 reports it.
    return [
        hashes.key_hash
        for owner, part, sent in _splits(text.split())
        for scope, key in _keys(request, owner, part, sent)
        for hashes in request_hashes(scope, key, b"", secrets)
    ]


def _splits(words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each way to read words as an owner, a host or tenant ("" for none), and a key.

    Each of them may contain spaces.
    """
    if len(words) <= MAX_WORDS:
        for first, second in combinations_with_replacement(range(1, len(words)), 2):
            parts = (words[:first], words[first:second], words[second:])
            owner, part, key = map(" ".join, parts)
            yield owner, part, key


def _keys(request: HttpRequest, owner: str, part: str, sent: str) -> Iterator[tuple[str, str]]:
    """Yield each scope that a key may have, with the key."""
    yield provider_scope(owner, part or None), sent
    try:
        key = parse_key(sent)
    except KeyInvalid:
        return
    for scope in _scopes(request, owner, part):
        yield scope, key


def _scopes(request: HttpRequest, owner: str, part: str) -> Iterator[str]:
    """Yield the scopes that a key of this owner may have."""
    places: list[tuple[str | None, str]] = [(part, ""), (None, part)]  # a tenant, or a host
    if not part:
        names = [host for host in django_settings.ALLOWED_HOSTS if host.strip(".*") == host]
        places = [(None, host) for host in dict.fromkeys([host_of(request), *names])]
    user = user_of(get_user_model()(pk=owner))
    for tenant, host in places:
        for owned in (
            scope_of(user, None, tenant, host),
            scope_of(None, owner, tenant, host),
        ):
            if owned is not None:
                yield owned
