"""Checks of `check --deploy`: settings that are acceptable only in development.

They open no connection.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error
from redis.connection import SSLConnection

from redlock_django.backends.redlock.masters import entries_of, host_of, hosts
from redlock_django.backends.redlock.settings import RedlockSettings
from redlock_django.checks.aliases import valid_aliases
from redlock_django.checks.settings import same_host_warning
from redlock_django.conf.settings import AliasSettings
from redlock_django.locking.services import locks
from redlock_django.operate.health import caveat
from redlock_django.wire.servers.acl import least_acl
from redlock_django.wire.servers.address import Address


def check_deployment(**_: Any) -> list[CheckMessage]:
    """Return W001 (password in a URL), E020 (locks in memory), W021 to W024 (insecure links).

    W050 says what is not excluded with PROFILE "failover".
    """
    messages: list[CheckMessage] = []
    for alias in locks:
        messages += _passwords_in_urls(alias)
    for options in valid_aliases():
        if not options.backend_class.is_shared:
            messages.append(_memory_error(options.alias))
            continue
        if len(names := hosts(_addresses(options)).get("", [])) > 1:
            messages.append(same_host_warning(options.alias, "this machine", names))
        messages += _insecure_links(options)
        if text := caveat(options.store):
            messages.append(_failover_warning(options.alias, text))
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
                    id="redlock_django.W001",
                )


def _has_password(url: object) -> bool:
    try:
        return bool(urlsplit(str(url)).password)
    except ValueError:
        return False  # E001 reports it.


def _memory_error(alias: str) -> CheckMessage:
    return Error(
        f"REDLOCK[{alias!r}]: BACKEND keeps locks in the memory of one process, so they do not "
        "exclude other processes.",
        hint="Remove BACKEND and list the servers in MASTERS.",
        id="redlock_django.E020",
    )


def _failover_warning(alias: str, text: str) -> CheckMessage:
    return checks.Warning(
        f"REDLOCK[{alias!r}]: PROFILE: {text}",
        hint="Set min-replicas-to-write to 1 on the server, so that a former primary stops "
        "(docs/how-to/one-redis.md), and silence this check.",
        id="redlock_django.W050",
    )


def _addresses(options: AliasSettings) -> tuple[Address, ...]:
    return options.store.addresses if isinstance(options.store, RedlockSettings) else ()


def _insecure_links(options: AliasSettings) -> Iterator[CheckMessage]:
    for number, problem, hint, is_insecure in _LINK_CHECKS:
        names = [address.name for address in _addresses(options) if is_insecure(address)]
        if names:
            yield checks.Warning(
                f"REDLOCK[{options.alias!r}]: MASTERS: connections to {', '.join(names)} "
                f"{problem}.",
                hint=hint,
                id=f"redlock_django.{number}",
            )


def _is_unencrypted(address: Address) -> bool:
    return bool(host_of(address)) and not issubclass(address.connection_class, SSLConnection)


def _is_anonymous(address: Address) -> bool:
    credentials = ("password", "credential_provider", "ssl_certfile")
    return bool(host_of(address)) and not any(address.kwargs.get(name) for name in credentials)


def _has_default_user(address: Address) -> bool:
    user = address.kwargs.get("username") or "default"
    return bool(address.kwargs.get("password")) and user in ("default", b"default")


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
        "do not use a password",
        "Set a password or create an ACL user on the servers, and add it to OPTIONS.",
        _is_anonymous,
    ),
    (
        "W023",
        "use the user 'default', which usually has all permissions",
        f"Create an ACL user that has only {least_acl('redlock')} (docs/reference/acl.md)",
        _has_default_user,
    ),
    (
        "W024",
        "do not verify certificates (ssl_cert_reqs is 'none')",
        "Remove ssl_cert_reqs and set ssl_ca_certs.",
        _has_unverified_certificate,
    ),
)
