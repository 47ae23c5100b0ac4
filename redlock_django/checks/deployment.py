"""What is fine on a developer's machine and nowhere else: `check --deploy`. No network."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, register
from django.utils.module_loading import import_string
from redis.connection import SSLConnection

from redlock_django.backends.memory import MemoryBackend
from redlock_django.checks.settings import TAG, one_host
from redlock_django.conf.masters import host_of, hosts
from redlock_django.conf.settings import AliasSettings, load
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.handler import locks
from redlock_django.wire.acl import least_acl
from redlock_django.wire.address import Address


@register(TAG, deploy=True)
def check_deployment(**_: Any) -> list[CheckMessage]:
    """W001: a password in a URL. E020: locks in memory. W021 to W024: an open door."""
    messages: list[CheckMessage] = []
    for alias in locks:
        messages += _passwords_in_urls(alias)
        try:
            options = load(alias)
        except InvalidRedlock:
            continue  # E001 tells of it
        if issubclass(import_string(options.backend), MemoryBackend):
            messages.append(_in_memory(alias))
            continue
        if len(names := hosts(options.addresses).get("", [])) > 1:
            messages.append(one_host(alias, "this one", names))
        messages += _doors(options)
    return messages


def _passwords_in_urls(alias: str) -> Iterator[CheckMessage]:
    for where, url in _urls(settings.REDLOCK[alias]):
        if _has_password(url):
            yield checks.Warning(
                f"REDLOCK[{alias!r}]: MASTERS: {where} has a password in its URL, which "
                "Django's debug page and error mails show.",
                hint="Move it to OPTIONS: {'password': ...}, which they mask.",
                id="redlock_django.W001",
            )


def _urls(section: Any) -> Iterator[tuple[str, Any]]:
    """Give every URL, however wrong the rest is, and where it stands."""
    masters = section.get("MASTERS", ()) if isinstance(section, Mapping) else ()
    if isinstance(masters, str):
        masters = masters.split(",")
    for number, entry in enumerate(masters if isinstance(masters, list | tuple) else (), 1):
        if isinstance(entry, list | tuple):
            for position, url in enumerate(entry, 1):
                yield f"group {number}, master {position}", url
        else:
            yield f"master {number}", entry


def _has_password(url: object) -> bool:
    try:
        return bool(urlsplit(str(url)).password)
    except ValueError:
        return False  # E001 tells of it


def _in_memory(alias: str) -> CheckMessage:
    return Error(
        f"REDLOCK[{alias!r}]: BACKEND keeps its locks in the memory of one process, and so "
        "excludes nobody in another.",
        hint="Leave BACKEND out, and name MASTERS.",
        id="redlock_django.E020",
    )


def _doors(options: AliasSettings) -> Iterator[CheckMessage]:
    for number, problem, hint, is_open in _DOORS:
        names = [address.name for address in options.addresses if is_open(address)]
        if names:
            yield checks.Warning(
                f"REDLOCK[{options.alias!r}]: MASTERS: {', '.join(names)} {problem}.",
                hint=hint,
                id=f"redlock_django.{number}",
            )


def _is_plain(address: Address) -> bool:
    return bool(host_of(address)) and not issubclass(address.connection_class, SSLConnection)


def _is_anonymous(address: Address) -> bool:
    ways_in = ("password", "credential_provider", "ssl_certfile")
    return bool(host_of(address)) and not any(address.kwargs.get(way) for way in ways_in)


def _is_default_user(address: Address) -> bool:
    user = address.kwargs.get("username") or "default"
    return bool(address.kwargs.get("password")) and user in ("default", b"default")


def _trusts_anybody(address: Address) -> bool:
    return address.kwargs.get("ssl_cert_reqs") in ("none", ssl.CERT_NONE)


_DOORS = (
    (
        "W021",
        "are asked without TLS: whoever is on the way can read tokens and passwords",
        "Use rediss:// URLs; silence this where the network is yours alone.",
        _is_plain,
    ),
    (
        "W022",
        "let everybody in, without a password",
        "Set a password or an ACL user on the servers, and in OPTIONS.",
        _is_anonymous,
    ),
    (
        "W023",
        "are asked as the user 'default', who usually may do everything",
        f"Make a user that may do this and no more: {least_acl('redlock')} (docs/reference/acl.md)",
        _is_default_user,
    ),
    (
        "W024",
        "may be anybody: ssl_cert_reqs is 'none'",
        "Leave ssl_cert_reqs out and give ssl_ca_certs.",
        _trusts_anybody,
    ),
)
