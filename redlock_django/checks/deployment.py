"""Checks of `check --deploy`: settings that are acceptable only in development.

They open no connection.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error
from redis.connection import SSLConnection

from redlock_django.backends.database.settings import DatabaseSettings
from redlock_django.backends.redis.masters import entries_of, host_of
from redlock_django.backends.redis.settings import RedlockSettings
from redlock_django.checks.aliases import valid_aliases
from redlock_django.locking.services import locks
from redlock_django.wire.servers.address import Address


def check_deployment(**_: Any) -> list[CheckMessage]:
    """Return what is acceptable only in development.

    W020: a password in a URL. E018: locks in the memory of one process. W021, W022, W023: insecure
    links. W019: locks in a file of SQLite.
    """
    messages: list[CheckMessage] = []
    for alias in locks:
        messages += _passwords_in_urls(alias)
    for options in valid_aliases():
        if not options.backend_class.is_shared:
            messages.append(_in_memory(options.alias, "BACKEND keeps locks"))
        elif isinstance(options.store, DatabaseSettings):
            messages += _sqlite(options.alias, options.store)
        elif isinstance(options.store, RedlockSettings):
            messages += _insecure_links(options.alias, options.store.addresses)
        elif getattr(options.store, "has_open_acl", False):
            messages.append(_open_to_all(options.alias))
    return messages


def _passwords_in_urls(alias: str) -> Iterator[CheckMessage]:
    section: Any = settings.REDLOCK[alias]
    # Even if the rest of the settings is invalid.
    section = section if isinstance(section, Mapping) else {}
    for key, word, options in (
        ("MASTERS", "master", "OPTIONS"),
        ("SENTINELS", "Sentinel", "SENTINEL_OPTIONS"),
    ):
        for number, url in enumerate(entries_of(section.get(key)), 1):
            if _has_password(url):
                yield checks.Warning(
                    f"REDLOCK[{alias!r}]: {key}: {word} {number} has a password in its URL. "
                    "Django's debug page and error emails show it.",
                    hint=f"Move the password to {options} = {{'password': ...}}, where Django "
                    "masks it.",
                    id="redlock_django.W020",
                )


def _has_password(url: object) -> bool:
    try:
        return bool(urlsplit(str(url)).password)
    except ValueError:
        return False  # E001 reports it.


def _in_memory(alias: str, what: str) -> CheckMessage:
    return Error(
        f"REDLOCK[{alias!r}]: {what} in the memory of one process, so they do not exclude other "
        "processes.",
        hint="Remove BACKEND and list the servers in MASTERS, or set DATABASE to a database that "
        "all processes share.",
        id="redlock_django.E018",
    )


def _sqlite(alias: str, store: DatabaseSettings) -> Iterator[CheckMessage]:
    if store.is_in_memory:
        yield _in_memory(alias, f"the database {store.database!r} keeps locks")
    elif store.sqlite_file:
        yield checks.Warning(
            f"REDLOCK[{alias!r}]: locks are in {store.sqlite_file}, a file of SQLite. They "
            "exclude the processes of this machine only, and not those of another "
            "container; one process at a time can write. A lock ends after its TTL "
            "however its holder ends; a crash of the machine may forget it.",
            hint="Use PostgreSQL or Redis servers if the site runs on several machines. "
            "Never put the file on a network file system. Otherwise silence this check.",
            id="redlock_django.W019",
        )


def _open_to_all(alias: str) -> CheckMessage:
    return checks.Warning(
        f"REDLOCK[{alias!r}]: every client of the ZooKeeper servers can delete locks.",
        hint="Set auth_data or sasl_options in OPTIONS, and then the nodes belong to these "
        "credentials; or set default_acl.",
        id="redlock_django.W022",
    )


def _insecure_links(alias: str, addresses: Iterable[Address]) -> Iterator[CheckMessage]:
    for number, problem, hint, is_insecure in _LINK_CHECKS:
        names = [one.name for one in addresses if host_of(one) and is_insecure(one)]
        if names:
            yield checks.Warning(
                f"REDLOCK[{alias!r}]: MASTERS: connections to {', '.join(names)} {problem}.",
                hint=hint,
                id=f"redlock_django.{number}",
            )


def _is_unencrypted(address: Address) -> bool:
    return not issubclass(address.connection_class, SSLConnection)


def _is_anonymous(address: Address) -> bool:
    credentials = ("password", "credential_provider", "ssl_certfile")
    return not any(address.kwargs.get(name) for name in credentials)


def _has_unverified_certificate(address: Address) -> bool:
    return address.kwargs.get("ssl_cert_reqs") in ("none", ssl.CERT_NONE)


_LINK_CHECKS = (
    (
        "W021",
        "do not use TLS, so tokens and passwords can be read on the network",
        "Use rediss:// URLs. On a private network, silence this check.",
        _is_unencrypted,
    ),
    (
        "W022",
        "do not use a password, so every client that reaches them can delete locks",
        "Set a password or create an ACL user on the servers, and add it to OPTIONS.",
        _is_anonymous,
    ),
    (
        "W023",
        "do not verify certificates (ssl_cert_reqs is 'none')",
        "Remove ssl_cert_reqs and set ssl_ca_certs.",
        _has_unverified_certificate,
    ),
)
