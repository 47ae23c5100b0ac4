"""The address of a master and its credentials, read from a URL and checked at startup."""

from __future__ import annotations

import inspect
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

if TYPE_CHECKING:
    from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

    ConnectionClass = type[Connection | SSLConnection | UnixDomainSocketConnection]

# The redis-py arguments that a site may set. The rest (timeouts, retries, decoding) belongs to this
# package: a connection that retries by itself makes a dead master cost seconds.
_OPEN = frozenset(
    {
        "client_name",
        "credential_provider",
        "db",
        "password",
        "protocol",
        "socket_keepalive_options",
        "username",
    }
)
_HOST = re.compile(r"[\w.-]+|[0-9a-f:.]+(%[\w.-]+)?")
_PASSWORD_HINT = "bad URL (the password must be percent-encoded)"

REDIS_PY = version("redis")
"""The version of redis-py. Its first connection looks it up, too, and would import what that needs
where the first lock is taken, perhaps in an event loop."""


@cache
def _classes() -> Mapping[str, ConnectionClass]:
    # The import takes longer than that of the rest of the app, and a process may need no lock.
    from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

    return {"redis": Connection, "rediss": SSLConnection, "unix": UnixDomainSocketConnection}


@cache
def options_of(scheme: str) -> frozenset[str]:
    """Return the names of the connection options for URLs of a scheme; "rediss" has them all."""
    lineage = _classes()[scheme].__mro__
    names = {name for cls in lineage for name in inspect.signature(cls).parameters}
    return frozenset(n for n in names if n in _OPEN or n.startswith("ssl_"))


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ValueError if options of connections are wrong for a master of any URL."""
    _check_names(options, "rediss")
    _check_values(options)


def nearest(name: object, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return `, did you mean 'x'?` for the known name most like `name` in any case, or ""."""
    by_lower = {word.lower(): word for word in known}
    found = get_close_matches(str(name).lower(), by_lower, n=1, cutoff=cutoff)
    return f", did you mean {by_lower[found[0]]!r}?" if found else ""


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of one master, as arguments for redis-py.

    `name` is shown to people: `host:port`, `host:port/db` or the unix path, never a secret.
    `kwargs` are the arguments of `connection_class`; they may hold a password and are in no repr.
    `endpoint` is equal for two addresses of the same server; the db does not count, because two
    databases of one server are one master. With `sentinels`, the host in `kwargs` is the name of a
    service, and these are asked for its primary; `answers` has the index of the one that answered
    last, which is asked first.
    """

    name: str
    endpoint: Hashable
    connection_class: ConnectionClass
    kwargs: Mapping[str, Any] = field(repr=False, compare=False)
    sentinels: tuple[Address, ...] = ()
    answers: list[int] = field(default_factory=lambda: [0], repr=False, compare=False)

    @property
    def store(self) -> str:
        """A string that identifies a database of a server, however its URL is spelled."""
        endpoint = self.endpoint if isinstance(self.endpoint, tuple) else (self.endpoint,)
        return "/".join(map(str, (*endpoint, self.kwargs["db"])))

    @classmethod
    def from_url(cls, url: str, options: Mapping[str, Any] | None = None) -> Address:
        """Read a `redis://`, `rediss://` or `unix://` URL, which overrides `options`.

        `options` are redis-py connection arguments (`username`, `password`, `ssl_*`, ...). Raises
        ValueError, whose message contains no part of the URL but names of options.
        """
        parts = _split(url)
        scheme = parts.scheme
        connection_class = _classes()[scheme]
        kwargs = dict(options or {})
        _check_names(kwargs, scheme)
        _check_names(_query(parts), scheme)
        kwargs |= _parse(url)
        if str(kwargs.get("protocol", "")).isdecimal():
            kwargs["protocol"] = int(kwargs["protocol"])  # redis-py 5.1 fails on a str
        _check_values(kwargs)
        if kwargs.get("socket_keepalive_options"):
            kwargs["socket_keepalive"] = True  # without it, redis-py ignores them
        kwargs["db"] = _db(parts, kwargs.get("db", 0))
        kwargs.pop("connection_class", None)
        _check_accepted(connection_class, kwargs)
        if scheme == "unix":
            name = kwargs["path"]
            endpoint: Hashable = name
        else:
            host, port = kwargs["host"], kwargs.setdefault("port", 6379)
            name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            # Ignore case and the usual second name of this machine. Other aliases of one server are
            # noticed later, when both answer with the same run_id.
            bare = host.lower().rstrip(".")
            endpoint = ("127.0.0.1" if bare == "localhost" else bare, port)
        if kwargs["db"]:
            name = f"{name}/{kwargs['db']}"
        return cls(name=name, endpoint=endpoint, connection_class=connection_class, kwargs=kwargs)

    @classmethod
    def of_service(
        cls, url: str, options: Mapping[str, Any], sentinels: Sequence[Address]
    ) -> Address:
        """Read the URL of a service of Sentinel: its name takes the place of host and port."""
        read = cls.from_url(url, options)
        parts = _split(url)
        if parts.scheme == "unix" or parts.port is not None:
            raise ValueError(
                "must name a service of Sentinel, because SENTINELS is set: redis://NAME/0 or "
                "rediss://NAME/0, without a port"
            )
        service = unquote(parts.netloc.rpartition("@")[2])  # `hostname` is in lower case
        db = read.kwargs["db"]
        return replace(
            read,
            name=f"{service}/{db}" if db else service,
            endpoint=(service, "sentinel"),
            kwargs={**read.kwargs, "host": service},
            sentinels=tuple(sentinels),
        )

    @classmethod
    def of_sentinel(cls, url: str, options: Mapping[str, Any]) -> Address:
        """Read the URL of one Sentinel."""
        address = cls.from_url(url, options)
        parts = _split(url)
        if parts.scheme == "unix" or parts.port is None or address.kwargs["db"]:
            raise ValueError(
                "must be redis://HOST:PORT or rediss://HOST:PORT of a Sentinel, whose port is "
                "26379 by default; it has no databases"
            )
        return address


def _split(url: str) -> SplitResult:
    if not isinstance(url, str):
        raise ValueError(f"must be a URL string, got {type(url).__name__}")
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("must start with redis://, rediss:// or unix://")
    # urlsplit() silently removes line ends, which would change a password.
    if not url.isprintable() or " " in url:
        raise ValueError("bad URL (it holds a space or a control character; percent-encode it)")
    parts: SplitResult | None = _attempt(urlsplit, url)
    if parts is None or parts.fragment or not _authority_is_whole(parts):
        raise ValueError(_PASSWORD_HINT)
    if parts.scheme == "unix":
        if len(parts.path) < 2:
            raise ValueError("has no socket path: unix:///run/redis.sock")
        return parts
    host = parts.hostname
    if not host:
        raise ValueError("has no host")
    if not _HOST.fullmatch(unquote(host)):
        raise ValueError(_PASSWORD_HINT)
    # A port that is not a number is most often the end of a password.
    port = _attempt(lambda: (parts.port,))
    if port is None:
        raise ValueError("bad URL (the port must be 1 to 65535, the password percent-encoded)")
    if port[0] == 0:
        raise ValueError("the port must be 1 to 65535")
    return parts


def _authority_is_whole(parts: SplitResult) -> bool:
    """Return whether no `/`, `?` or `#` of a password has cut the authority short."""
    if "@" in parts.path + parts.query + parts.fragment:
        return False
    return parts.scheme != "unix" or not parts.netloc.rpartition("@")[2]


def _query(parts: SplitResult) -> list[str]:
    if not parts.query:
        return []
    pairs = _attempt(lambda: parse_qsl(parts.query, strict_parsing=True))
    if pairs is None:
        raise ValueError("bad URL (query options are name=value, joined by &)")
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise ValueError("has a query option twice")
    return names


def _check_names(names: Iterable[str], scheme: str) -> None:
    """Raise ValueError for the first name that is unknown, or would have no effect."""
    for name in names:
        if name in options_of(scheme):
            continue
        if name in options_of("rediss") and name.startswith("ssl_"):
            raise ValueError(f"option {name!r} needs a rediss:// URL")
        hint = nearest(name, options_of(scheme), cutoff=0.85) or "."
        raise ValueError(
            f"connection option {name!r} has no effect here{hint} The server and TLS are set by "
            "the URL, times by MASTER_TIMEOUT and CONNECT_TIMEOUT; what else may be set is in "
            "docs/reference/settings.md"
        )


def _parse(url: str) -> dict[str, Any]:
    from redis.connection import parse_url

    parsed: dict[str, Any] | None = _attempt(parse_url, url)
    if parsed is None:
        raise ValueError("bad URL (a query option has a value of the wrong kind)")
    return parsed


def _db(parts: SplitResult, db: Any) -> int:
    # redis-py reads "/notanumber" as database 0 and "/1/2" as 12.
    path = "" if parts.scheme == "unix" else parts.path.removeprefix("/")
    if path and not re.fullmatch("[0-9]{1,9}", path):
        raise ValueError("the database after the host must be a number")
    if path and int(path) != db:
        raise ValueError("has the database twice, in the path and as ?db=")
    if isinstance(db, bool) or not isinstance(db, int) or db < 0:
        raise ValueError("the database (db) must be a whole number, 0 or more")
    return db


def _check_values(options: Mapping[str, Any]) -> None:
    """Check the values that redis-py does not check before it connects."""
    for login in ("username", "password"):
        if not isinstance(options.get(login), str | bytes | None):
            raise ValueError(f"{login} must be a string, got {type(options[login]).__name__}")
    name = "socket_keepalive_options"
    if not isinstance(options.get(name), Mapping | None):
        raise ValueError(f"connection option {name!r} must be a dict of numbers, in OPTIONS")


def _check_accepted(connection_class: ConnectionClass, kwargs: Mapping[str, Any]) -> None:
    """Check the arguments with redis-py; making the connection object opens no connection."""
    if _attempt(lambda: connection_class(**kwargs)) is None:
        names = ", ".join(sorted(set(kwargs) - {"host", "port", "path", "db"}))
        raise ValueError(f"redis-py {REDIS_PY} refuses these connection options: {names}")


def _attempt(function: Any, *args: Any) -> Any:
    """Return the result, or None for an error: its text and context may hold a password."""
    from redis.exceptions import RedisError

    try:
        return function(*args)
    except (ValueError, TypeError, AttributeError, NameError, RedisError):
        return None
