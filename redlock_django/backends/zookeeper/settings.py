"""The settings of the ZooKeeper store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, ClassVar, Self

from kazoo.hosts import collect_hosts
from kazoo.protocol.paths import normpath
from kazoo.security import ACL

from redlock_django.backends.base import Section, StoreSettings
from redlock_django.backends.values import (
    LONGEST_WAIT,
    SHORTEST_TTL,
    mapping,
    seconds,
    several,
    string,
)
from redlock_django.wire.servers.address import nearest

_OF_TLS = ("ca", "certfile", "check_hostname", "keyfile", "keyfile_password", "verify_certs")
_OPTIONS = ("auth_data", "default_acl", "sasl_options", "use_ssl", *_OF_TLS)


@dataclass(frozen=True, kw_only=True)
class ZooKeeperSettings(StoreSettings):
    """The settings of locks in ZooKeeper: the servers, the node of all locks, the session."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        **StoreSettings.DEFAULTS,
        "HOSTS": (),
        "ROOT": "/redlock",
        "SESSION_TIMEOUT": 10,
        "ZOOKEEPER_TIMEOUT": 2,
        "OPTIONS": {},
    }

    hosts: tuple[str, ...]
    root: str = "/redlock"
    session_timeout: float = 10.0
    zookeeper_timeout: float = 2.0
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # has passwords

    @classmethod
    def read(cls, section: Section) -> Self:
        return cls(
            max_ttl=seconds(section, "MAX_TTL", least=SHORTEST_TTL),
            hosts=tuple(map(_host, several(section, "HOSTS"))) or _no_hosts(),
            root=_root(section),
            session_timeout=seconds(section, "SESSION_TIMEOUT", least=0.2, most=LONGEST_WAIT),
            zookeeper_timeout=seconds(section, "ZOOKEEPER_TIMEOUT", least=0.1, most=LONGEST_WAIT),
            options=_options(mapping(section, "OPTIONS")),
        )

    @property
    def ensemble(self) -> str:
        """The name of all servers together: one of them decides nothing alone."""
        return ",".join(self.hosts)

    @property
    def identity(self) -> str:
        return f"zookeeper {','.join(sorted(self.hosts))}{self.root}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.ensemble,)

    @property
    def has_credentials(self) -> bool:
        """True if clients authenticate, so that nodes can belong to them alone."""
        return bool(self.options.get("auth_data") or self.options.get("sasl_options"))

    @property
    def has_open_acl(self) -> bool:
        """True if every client of the servers may delete the locks."""
        acl = self.options.get("default_acl")
        return any(one.id.scheme == "world" for one in acl) if acl else not self.has_credentials


def _no_hosts() -> tuple[str, ...]:
    raise ValueError("HOSTS must name at least one server: ['10.0.0.1:2181', ...]")


def _host(given: object) -> str:
    if isinstance(given, str) and given.strip() == given and not set("/,@ ") & set(given):
        try:
            ((host, port),), _ = collect_hosts(given)
        except ValueError:
            pass
        else:
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    raise ValueError(
        "HOSTS must be a list of hosts with ports, such as '10.0.0.1:2181', without paths and "
        "passwords: the path of all locks is ROOT, and credentials are in OPTIONS"
    )


def _root(section: Section) -> str:
    root = string(section, "ROOT")
    try:
        if root != "/" and normpath(root) == root and root.startswith("/"):
            return root
    except ValueError:
        pass
    raise ValueError(f"ROOT must be an absolute path such as '/redlock', got {root!r}")


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of kazoo's client, with `auth_data` as it wants it."""
    for key in given:
        if key not in _OPTIONS:
            raise ValueError(f"OPTIONS: unknown key {key!r}{nearest(key, _OPTIONS)}")
    for key, check in {"sasl_options": _check_sasl, "default_acl": _check_acl}.items():
        if given.get(key) is not None:
            check(given[key])
    for key in _OF_TLS if not given.get("use_ssl") else ():
        if given.get(key) is not None:
            raise ValueError(
                f"OPTIONS: {key} has no effect without use_ssl: set use_ssl to True, or remove "
                f"{key}"
            )
    for key in ("keyfile", "keyfile_password"):
        if given.get(key) and not given.get("certfile"):
            raise ValueError(
                f"OPTIONS: {key} has no effect without certfile: name the file of the certificate, "
                f"or remove {key}"
            )
    if given.get("check_hostname") and not given.get("verify_certs", True):
        raise ValueError("OPTIONS: check_hostname needs verify_certs: set both or none")
    return {**given, "auth_data": _credentials(given.get("auth_data") or ())}


def _credentials(pairs: object) -> set[tuple[str, str]]:
    """Return `auth_data`: pairs of a scheme and a credential."""
    if not isinstance(pairs, list | tuple | set) or not all(map(_is_pair, pairs)):
        raise ValueError(
            "OPTIONS: auth_data must be a list of pairs such as ('digest', 'user:password')"
        )
    if any(scheme == "sasl" for scheme, _ in pairs):
        raise ValueError("OPTIONS: use sasl_options instead of auth_data for SASL")
    return {(scheme, credential) for scheme, credential in pairs}


def _is_pair(pair: object) -> bool:
    return isinstance(pair, list | tuple) and [isinstance(part, str) for part in pair] == [
        True,
        True,
    ]


def _check_sasl(options: object) -> None:
    if not isinstance(options, Mapping) or "mechanism" not in options:
        raise ValueError("OPTIONS: sasl_options must be a dict with the key 'mechanism'")
    if find_spec("puresasl") is None:
        raise ValueError("OPTIONS: sasl_options needs pure-sasl: pip install pure-sasl")


def _check_acl(acl: object) -> None:
    acls = acl if isinstance(acl, list | tuple) else ()
    if not acls or not all(isinstance(one, ACL) for one in acls):
        raise ValueError("OPTIONS: default_acl must be a list of ACLs of kazoo.security")
