"""System checks that read only the settings: valid settings that are probably not intended."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from tests.app.checking import found
from tests.app.conftest import LOCK_MIDDLEWARE, MEMORY

AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
THREE = ["redis://a", "redis://b", "redis://c"]
REDIS_CACHES = ["django_redis.cache.RedisCache", "django.core.cache.backends.redis.RedisCache"]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a check opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    settings.MIDDLEWARE = []
    settings.ROOT_URLCONF = ""


def of(settings: Settings, masters: Any = THREE, **keys: Any) -> dict[str, str]:
    """Return the check messages for these settings of the default alias."""
    settings.REDLOCK = {"default": {"MASTERS": masters, **keys}}
    return found()


def test_valid_settings_have_no_messages(settings: Settings) -> None:
    assert of(settings) == {}
    settings.REDLOCK = {"default": {"BACKEND": MEMORY}}
    assert found() == {}


@pytest.mark.parametrize("backend", REDIS_CACHES)
@pytest.mark.parametrize(
    ("location", "shared"),
    [
        ("redis://:canary@B:6379/0", True),
        ("redis://b", True),
        ("redis://b/1", False),
        ("redis://b:6380", False),
        (["redis://primary", "redis://b?db=0"], True),
        ("redis://b?socket_timeout=5&max_connections=9", True),
        ("redis://x,redis://b", True),
        ("no address", False),
        ("", False),
    ],
)
def test_a_database_shared_with_a_cache(
    settings: Settings, backend: str, location: Any, shared: bool
) -> None:
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "sessions": {"BACKEND": backend, "LOCATION": location},
        "broken": {"BACKEND": "not.there"},
    }
    said = of(settings)
    assert set(said) == ({"W005"} if shared else set())
    if shared:
        assert "b:6379 is also the database of the cache 'sessions'" in said["W005"]
        assert "canary" not in said["W005"]


def test_a_master_that_is_named_by_its_cache(settings: Settings) -> None:
    settings.CACHES = {
        "default": {"BACKEND": REDIS_CACHES[0], "LOCATION": "redis://a/3", "OPTIONS": {"db": 3}}
    }
    assert (
        "a:6379/3 is also the database of the cache 'default'"
        in of(settings, ["cache:default", "redis://b", "redis://c"])["W005"]
    )


@pytest.mark.parametrize(
    ("masters", "keys", "common", "differ"),
    [
        (THREE, {"MAX_TTL": 30}, "a:6379", "MAX_TTL, RESTART_DELAY"),
        (THREE, {"MAX_CLOCK_SKEW": 0.4, "RESTART_DELAY": 70}, "a:6379", "MAX_CLOCK_SKEW, RESTART"),
        (["redis://A./0", "redis://d", "redis://e"], {}, "a:6379", "MASTERS"),
        (["redis://c"], {"PROFILE": "failover"}, "c:6379", "MASTERS, PROFILE, RESTART_DELAY"),
    ],
)
def test_two_aliases_of_which_only_one_can_use_a_master(
    settings: Settings, masters: Any, keys: dict[str, Any], common: str, differ: str
) -> None:
    other = {"MASTERS": masters, **keys}
    settings.REDLOCK = {"default": {"MASTERS": THREE}, "other": other}
    said = found()["E009"]
    assert f"['default'] have the master {common} and KEY_PREFIX 'redlock' in common" in said
    assert f"but not {differ}" in said
    assert said.count("in common") == 1
    settings.REDLOCK = {"default": {"MASTERS": THREE}, "other": {**other, "KEY_PREFIX": "other"}}
    assert "E009" not in found()


def test_aliases_that_may_share_their_masters(settings: Settings) -> None:
    service = {"MASTERS": ["redis://main"], "PROFILE": "failover", "SENTINELS": ["redis://s:26379"]}
    settings.REDLOCK = {
        "default": {"MASTERS": THREE},
        "same": {"MASTERS": THREE[::-1], "TTL": 5, "FENCE_TTL": 900, "MASTER_TIMEOUT": 1},
        "another database": {"MASTERS": [f"{url}/1" for url in THREE], "MAX_TTL": 30},
        "memory": {"MASTERS": THREE, "MAX_TTL": 30, "BACKEND": MEMORY},
        "service": service,
        "another service": {**service, "SENTINELS": ["redis://t:26379"], "MAX_TTL": 30},
    }
    assert "E009" not in found()


def test_a_missing_default_alias_is_reported(settings: Settings) -> None:
    settings.REDLOCK = {"payments": {"MASTERS": THREE}}
    assert "no alias 'default'" in found()["W016"]


@pytest.mark.parametrize(
    ("middleware", "expected"),
    [
        ([AUTHENTICATION, LOCK_MIDDLEWARE], set()),
        ([LOCK_MIDDLEWARE], set()),
        ([AUTHENTICATION], set()),
        ([LOCK_MIDDLEWARE, AUTHENTICATION], {"W006"}),
        ([LOCK_MIDDLEWARE, AUTHENTICATION, LOCK_MIDDLEWARE], {"W006"}),
    ],
)
def test_the_position_of_the_middleware_is_checked(
    settings: Settings, middleware: list[str], expected: set[str]
) -> None:
    settings.MIDDLEWARE = middleware
    assert set(of(settings)) == expected


def test_wrong_settings_are_errors_and_nothing_else(settings: Settings) -> None:
    settings.REDLOCK = {"default": {"MASTERS": ["redis://a"], "TLL": 3}, "other": {"MASTERS": 5}}
    assert set(found(deploy=True)) == {"E001"}


def test_everything_can_be_silenced(settings: Settings) -> None:
    settings.REDLOCK = {"payments": {"MASTERS": THREE}}
    with pytest.raises(CommandError, match="W016"):
        call_command("check", "--tag", "redlock", "--fail-level", "WARNING")
    settings.SILENCED_SYSTEM_CHECKS = ["redlock_django.W016"]
    call_command("check", "--tag", "redlock", "--fail-level", "WARNING")


# `check --deploy`.


def deployed(settings: Settings, masters: Any, **keys: Any) -> dict[str, str]:
    of(settings, masters, **keys)
    return found(deploy=True)


def test_valid_deployment_has_no_messages(settings: Settings) -> None:
    login = {"username": "shop", "password": "canary"}
    assert deployed(settings, [f"rediss://h{n}" for n in "abc"], OPTIONS=login) == {}
    with_certificates = [f"rediss://h{n}?ssl_certfile=/c&ssl_keyfile=/k" for n in "abc"]
    assert deployed(settings, with_certificates) == {}


def test_locks_in_memory_are_reported_at_deployment(settings: Settings) -> None:
    settings.REDLOCK = {"default": {"BACKEND": MEMORY}}
    assert set(found(deploy=True)) == {"E018"}
    assert found() == {}


def test_a_password_in_a_url(settings: Settings) -> None:
    said = deployed(settings, ["redis://:canary@h1", "redis://h2", "unix:///run/redis.sock"])
    assert "master 1 has a password in its URL" in said["W020"]
    assert "master 2" not in said["W020"]
    assert "W020" not in found()
    assert "master 2" in deployed(settings, "redis://h1,redis://u:canary@h2")["W020"]
    assert "canary" not in str(said)
    settings.REDLOCK = {
        "default": {
            "MASTERS": ["redis://name"],
            "SENTINELS": ["redis://h:1", "redis://:canary@h:2"],
            "PROFILE": "failover",
        }
    }
    said = found(deploy=True)
    assert "SENTINELS: Sentinel 2 has a password in its URL" in said["W020"]
    assert "SENTINEL_OPTIONS = {'password': ...}" in said["W020"]
    assert "canary" not in str(said)


@pytest.mark.attack
def test_insecure_links_are_reported_at_deployment(settings: Settings) -> None:
    masters = [
        "redis://u:p@h1",
        "rediss://h2",
        "rediss://:p@h3",
        "rediss://u:p@h4?ssl_cert_reqs=none",
    ]
    said = deployed(settings, masters)
    assert "MASTERS: connections to h1:6379 do not use TLS" in said["W021"]
    assert "MASTERS: connections to h2:6379 do not use a password" in said["W022"]
    assert "h3" not in str(said)
    assert "MASTERS: connections to h4:6379 do not verify certificates" in said["W023"]
    local = ["redis://127.0.0.1:1", "redis://[::1]:2", "unix:///run/redis.sock"]
    assert deployed(settings, local) == {}
