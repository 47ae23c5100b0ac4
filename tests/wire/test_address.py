"""URLs of masters: which are accepted, which are refused, and that no password is ever shown."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import BlockingConnectionPool, Redis
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from redlock_django.wire.servers.address import Address

CANARY = "c4n4ry"


def refused(url: Any, options: dict[str, Any] | None = None) -> ValueError | None:
    """Return the error with which an address is refused."""
    try:
        Address.from_url(url, options)
    except ValueError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("url", "name", "connection_class", "kwargs"),
    [
        ("redis://h", "h:6379", Connection, {"host": "h", "port": 6379, "db": 0}),
        ("redis://H:1/2", "h:1/2", Connection, {"host": "h", "port": 1, "db": 2}),
        ("redis://h:1?db=3", "h:1/3", Connection, {"db": 3}),
        ("redis://[::1]:7", "[::1]:7", Connection, {"host": "::1", "port": 7}),
        ("rediss://h:1", "h:1", SSLConnection, {}),
        ("rediss://h:1?ssl_cert_reqs=none", "h:1", SSLConnection, {"ssl_cert_reqs": "none"}),
        ("redis://u:p%2Fs%40@h", "h:6379", Connection, {"username": "u", "password": "p/s@"}),
        ("redis://h?client_name=web", "h:6379", Connection, {"client_name": "web"}),
        ("redis://h?protocol=2", "h:6379", Connection, {"protocol": 2}),
        ("unix:///r/x.sock", "/r/x.sock", UnixDomainSocketConnection, {"path": "/r/x.sock"}),
        ("unix://u:p@/x?db=2", "/x/2", UnixDomainSocketConnection, {"password": "p", "db": 2}),
    ],
)
def test_a_url_is_understood(
    url: str, name: str, connection_class: type, kwargs: dict[str, Any]
) -> None:
    address = Address.from_url(url)
    assert address.name == name
    assert address.connection_class is connection_class
    assert address.kwargs.items() >= kwargs.items()
    address.connection_class(**address.kwargs)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis//x", "must start with redis://"),
        ("http://x", "must start with redis://"),
        ("", "must start with redis://"),
        (None, "must be a URL string, got NoneType"),
        (b"redis://x", "must be a URL string, got bytes"),
        ("redis://", "no host"),
        ("redis://:6379", "no host"),
        ("redis:///3", "no host"),
        ("redis://h/one", "the database after the host must be a number"),
        ("redis://h/1/2", "the database after the host must be a number"),
        ("redis://h/-1", "the database after the host must be a number"),
        ("redis://h/2?db=1", "has the database twice"),
        ("redis://h?db=-1", "whole number, 0 or more"),
        ("redis://h:0", "port must be 1 to 65535"),
        ("redis://h:70000", "port must be 1 to 65535"),
        ("redis://h:x", "port must be 1 to 65535"),
        ("redis://[::1", "bad URL"),
        ("redis://h h", "a space or a control character"),
        ("redis://h\n", "a space or a control character"),
        ("redis://h#x", "percent-encoded"),
        ("redis://h?client_nam=web", "did you mean 'client_name'"),
        ("redis://h?socket_timeout=1", "'socket_timeout' has no effect here. The server"),
        ("redis://h?max_connections=1", "'max_connections' has no effect here."),
        ("redis://h?decode_responses=1", "times by MASTER_TIMEOUT and CONNECT_TIMEOUT"),
        ("redis://h?host=other", "TLS are set by the URL"),
        ("redis://h?socket_keepalive=0", "'socket_keepalive' has no effect here"),
        ("redis://h?db=1&db=2", "twice"),
        ("redis://h?db", "name=value"),
        ("redis://h?protocol=soon", "a value of the wrong kind"),
        ("redis://h?socket_keepalive_options=60", "must be a dict of numbers, in OPTIONS"),
        ("redis://h?protocol=9", "refuses these connection options: protocol"),
        ("redis://h?ssl_cert_reqs=none", "'ssl_cert_reqs' needs a rediss:// URL"),
        ("rediss://h?ssl_cert_reqs=maybe", "refuses these"),
        ("unix://", "no socket path"),
        ("unix:///", "no socket path"),
        ("unix:///x?socket_keepalive=1", "connection option 'socket_keepalive' has no effect here"),
    ],
)
def test_a_bad_url_is_refused_with_a_clear_message(url: Any, says: str) -> None:
    assert says in str(refused(url))


def test_the_url_wins_over_the_options() -> None:
    address = Address.from_url(
        "redis://u:url@h/1?client_name=url",
        {"username": "o", "password": "option", "db": 5, "protocol": 2, "client_name": "c"},
    )
    assert address.kwargs == {
        "host": "h",
        "port": 6379,
        "db": 1,
        "username": "u",
        "password": "url",
        "protocol": 2,
        "client_name": "url",
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pasword": "x"}, "did you mean 'password'"),
        ({"retry": None}, "'retry' has no effect here."),
        ({"ssl": True}, "'ssl' has no effect here. The server and TLS are set by the URL"),
        ({"ssl_ca_certs": "/ca.pem"}, "'ssl_ca_certs' needs a rediss:// URL"),
        ({"db": "1"}, "the database (db) must be a whole number"),
        ({"db": True}, "the database (db) must be a whole number"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], says: str) -> None:
    assert says in str(refused("redis://h", options))


EFFECTIVE = {"client_name", "credential_provider", "db", "password", "protocol"}
EFFECTIVE |= {"socket_keepalive_options", "username"}


def test_each_argument_of_redis_py_has_an_effect_or_is_refused_with_where_to_look() -> None:
    classes = (Redis, BlockingConnectionPool, Connection, SSLConnection, UnixDomainSocketConnection)
    every = {name for cls in classes for one in cls.__mro__ for name in signature(one).parameters}
    taken = {name for name in every if refused("rediss://h", {name: None}) is None}
    of_tls = {name for name in every if name.startswith("ssl_")}
    assert {*taken} - of_tls <= EFFECTIVE
    assert len(every) > 40
    for name in every - EFFECTIVE - of_tls:
        said = str(refused("rediss://h", {name: None}))
        assert f"connection option {name!r} has no effect here. " in said
        assert "docs/reference/settings.md" in said


def test_keepalive_options_have_an_effect_in_every_version_of_redis_py() -> None:
    address = Address.from_url("redis://h", {"socket_keepalive_options": {4: 30}})
    connection: Any = address.connection_class(**address.kwargs)
    assert connection.socket_keepalive is True


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://h:1/0", "redis://h:1/7"),
        ("redis://localhost", "redis://127.0.0.1:6379"),
        ("redis://LocalHost:1", "rediss://127.0.0.1:1"),
        ("redis://h.example.:1", "redis://H.example:1"),
        ("redis://a:b@h:1", "redis://c:d@h:1"),
        ("unix:///x", "unix:///x?db=1"),
    ],
)
def test_one_server_has_one_endpoint(one: str, other: str) -> None:
    assert Address.from_url(one).endpoint == Address.from_url(other).endpoint


def test_different_servers_have_different_endpoints() -> None:
    urls = ["redis://h:1", "redis://h:2", "redis://i:1", "unix:///h", "unix:///i"]
    assert len({Address.from_url(url).endpoint for url in urls}) == len(urls)


BREAKING = [
    "redis://:{}/s@host/0",
    "redis://:/{}@host",
    "redis://user:a/{}@host:6379/0",
    "redis://user:a?{}@host",
    "redis://user:a?{}=b@host",
    "redis://user:a#{}@host",
    "redis://user:a#@{}@host",
    "redis://user:1/{}@host",
    "redis://{}%40host:1",
    "redis://user:{}%40host",
    "redis://user:a[{}@host",
    "redis://user:{}\n@host",
    "redis://user:{} @host",
    "redis://:{}@host:port",
    "redis://:{}@host/db",
    "redis://:{}@host?protocol=x",
    "redis://:{}@host?protocol=9",
    "redis://:{}@host?sockettimeout=1",
    "redis://host?password={}&protocol=9",
    "rediss://:{}@host?ssl_cert_reqs=x",
    "unix://:a/{}@/x",
    "unix://:{}/x",
    "unix://u:p@/{}@/x",
    "http://:{}@host",
    "redis//:{}@host",
]


@pytest.mark.parametrize("shape", BREAKING)
def test_no_error_shows_a_password(shape: str) -> None:
    error = refused(shape.format(CANARY))
    assert error is not None
    shown = f"{error} {error!r} {error.args}"
    assert CANARY not in shown
    assert error.__context__ is None
    assert error.__cause__ is None


@pytest.mark.attack
@given(st.text(st.characters(codec="utf-8"), max_size=8), st.sampled_from(BREAKING))
@pytest.mark.slow
def test_no_error_shows_a_random_password(noise: str, shape: str) -> None:
    secret = f"{CANARY}{noise}{CANARY}"
    shown = refused(shape.format(secret)) or Address.from_url(shape.format(secret))
    assert CANARY not in f"{shown} {shown!r}"
    if isinstance(shown, ValueError):
        assert shown.__context__ is None
    else:
        assert CANARY not in shown.name


@pytest.mark.parametrize(
    ("url", "options"),
    [
        (f"redis://u:{CANARY}@h:1/2", {}),
        (f"unix://u:{CANARY}@/x", {}),
        (f"redis://h?password={CANARY}", {}),
        ("redis://h", {"password": CANARY}),
        ("rediss://h", {"ssl_password": CANARY}),
    ],
)
def test_no_address_shows_a_password(url: str, options: dict[str, str]) -> None:
    address = Address.from_url(url, options)
    assert CANARY in address.kwargs.values()
    assert CANARY not in f"{address!r} {address} {address.name} {address.endpoint}"
    assert CANARY not in f"{[address]!r}"
