"""settings.REDLOCK: the values that are read from it, and the errors for wrong ones."""

from __future__ import annotations

import os
import select
import traceback
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from redlock_django.backends.base import BaseBackend
from redlock_django.backends.redis.settings import RedlockSettings
from redlock_django.backends.values import LONGEST, LONGEST_WAIT, duration
from redlock_django.checks.deployment import check_deployment
from redlock_django.checks.settings import check_settings
from redlock_django.conf import settings as conf_settings
from redlock_django.conf.settings import AliasSettings, load
from redlock_django.exceptions import InvalidRedlock
from redlock_django.wire.wakeup import Wakeup

CANARY = "c4n4ry"
THREE = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]


def read(settings: Settings, **section: Any) -> AliasSettings:
    settings.REDLOCK = {"default": {"MASTERS": THREE, **section}}
    return load("default")


def store(options: AliasSettings) -> RedlockSettings:
    assert isinstance(options.store, RedlockSettings)
    return options.store


def refusal(settings: Settings, **section: Any) -> str:
    with pytest.raises(InvalidRedlock) as caught:
        read(settings, **section)
    message = str(caught.value)
    assert message.startswith("REDLOCK['default']: ")
    return message


def test_defaults(settings: Settings) -> None:
    options = read(settings)
    assert [address.name for address in store(options).addresses] == [
        "10.0.0.1:6379",
        "10.0.0.2:6379",
        "10.0.0.3:6379",
    ]
    assert (options.alias, options.ttl, options.wait, options.max_ttl) == ("default", 10, 0, 60)
    assert options.max_hold == 300
    assert (store(options).master_timeout, store(options).connect_timeout) == (0.25, 1.0)
    assert store(options).deployment.max_clock_skew == 0.5
    assert store(options).deployment.restart_delay == pytest.approx(1.02 * 60 + 5 * 0.5 + 0.05)
    assert (store(options).deployment.prefix, store(options).deployment.fence_ttl) == (
        "redlock",
        600,
    )
    assert (options.status, options.on_unavailable) == (423, "refuse")
    assert (store(options).tolerate, options.rules, options.idempotency) == (frozenset(), (), {})


def test_durations_may_be_timedeltas(settings: Settings) -> None:
    options = read(settings, TTL=timedelta(seconds=2.5), WAIT=timedelta(milliseconds=30))
    assert (options.ttl, options.wait) == (2.5, 0.03)


@pytest.mark.parametrize("count", [1, 2])
def test_restart_delay_auto_is_off_below_three_masters(settings: Settings, count: int) -> None:
    assert store(read(settings, MASTERS=THREE[:count])).deployment.restart_delay == 0


def test_the_failover_profile_waits_with_one_server(settings: Settings) -> None:
    options = read(settings, MASTERS=THREE[:1], PROFILE="failover", MAX_TTL=15)
    assert store(options).deployment.restart_delay == pytest.approx(1.02 * 15 + 5 * 0.5 + 15.05)
    assert store(options).deployment.failover


def test_a_service_of_sentinel_is_named_in_the_place_of_a_host(settings: Settings) -> None:
    sentinels = ["redis://s1:26379", "rediss://s2:26379"]
    given = {"SENTINELS": sentinels, "SENTINEL_OPTIONS": {"password": CANARY}}
    options = read(settings, MASTERS=["rediss://MyMaster/3"], PROFILE="failover", **given)
    (address,) = store(options).addresses
    assert (address.name, address.kwargs["host"]) == ("MyMaster/3", "MyMaster")
    assert address.store == "MyMaster/sentinel/3"
    assert [one.name for one in address.sentinels] == ["s1:26379", "s2:26379"]
    assert [one.kwargs["password"] for one in address.sentinels] == [CANARY] * 2
    assert CANARY not in repr(options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"RESTART_DELAY": 0}, "would grant locks that it has not received. Remove RESTART_DELAY"),
        ({"RESTART_DELAY": 70}, "+ 5 x MAX_CLOCK_SKEW + 15 s = 78.7 s, got 70"),
        ({"SENTINELS": ["redis://s"]}, "SENTINELS: Sentinel 1: must be redis://HOST:PORT or"),
        ({"SENTINELS": ["redis://s:1/2"]}, "SENTINELS: Sentinel 1: must be redis://HOST:PORT or"),
        ({"SENTINELS": "redis://s:1"}, "SENTINELS must be a list"),
        ({"SENTINELS": ["redis://s:1"], "MASTERS": ["redis://a:1"]}, "must name a service of Sent"),
        ({"SENTINELS": ["redis://s:1"], "MASTERS": ["cache:default"]}, "must start with redis://"),
        ({"SENTINELS": ["redis://s:1"], "PROFILE": None}, "Set PROFILE to 'failover'"),
        ({"SENTINEL_OPTIONS": []}, "SENTINEL_OPTIONS must be a dict"),
        ({"SENTINEL_OPTIONS": {"password": CANARY}}, "List the URLs of the Sentinels in SENTINELS"),
        ({"TOLERATE": ["replica"]}, "beside its primary. Remove 'replica' from TOLERATE"),
        (
            {"BACKEND": "redlock_django.backends.database.DatabaseBackend"},
            "PROFILE is for a Redis or",
        ),
        ({"BACKEND": "redlock_django.backends.zookeeper.ZooKeeperBackend"}, "Remove PROFILE, or"),
    ],
)
def test_the_failover_profile_is_refused_where_it_means_nothing(
    settings: Settings, given: dict[str, Any], message: str
) -> None:
    keys = {"MASTERS": THREE[:1], "PROFILE": "failover", **given}
    assert message in refusal(settings, **keys)


def test_restart_delay_may_be_given(settings: Settings) -> None:
    assert store(read(settings, RESTART_DELAY=0)).deployment.restart_delay == 0
    assert store(read(settings, RESTART_DELAY=63.7)).deployment.restart_delay == 63.7
    small = {"MAX_TTL": 10, "MAX_CLOCK_SKEW": 0.1}
    assert store(read(settings, RESTART_DELAY=10.7, **small)).deployment.restart_delay == 10.7


def test_masters_may_be_one_string(settings: Settings) -> None:
    options = read(settings, MASTERS=" redis://a , redis://b:1/2,")
    assert [address.name for address in store(options).addresses] == ["a:6379", "b:1/2"]


def test_options_go_to_every_master(settings: Settings) -> None:
    options = read(settings, OPTIONS={"username": "u", "password": CANARY})
    assert [address.kwargs["password"] for address in store(options).addresses] == [CANARY] * 3
    assert CANARY not in repr(options)


BACKENDS = "redlock_django.backends"
BAD: list[tuple[str, Any, str]] = [
    ("TTLL", 1, "unknown key 'TTLL', did you mean 'TTL'?"),
    ("ttl", 1, "unknown key 'ttl', did you mean 'TTL'?"),
    ("MASTER", [], "unknown key 'MASTER', did you mean 'MASTERS'?"),
    ("LOCATION_OF_ALL", [], "unknown key 'LOCATION_OF_ALL'"),
    ("DATABASE", "default", "is a key of redlock_django.backends.database.DatabaseBackend. Remove"),
    ("BACKEND", "nowhere.Backend", "BACKEND 'nowhere.Backend' cannot be imported"),
    ("BACKEND", f"{__name__}.Nothing", "cannot be imported"),
    ("BACKEND", "nowhere.Backend", "The stores are redlock_django.backends.redis.RedisBackend, "),
    ("BACKEND", "database", "mean 'redlock_django.backends.database.DatabaseBackend'? The stores"),
    ("BACKEND", f"{BACKENDS}.zookeper.ZookeperBackend", f"mean '{BACKENDS}.zookeeper.ZooKeeperB"),
    ("BACKEND", f"{BACKENDS}.memory.MemoryBackends", f"mean '{BACKENDS}.memory.MemoryBackend'?"),
    ("BACKEND", "os.path.join", "BACKEND 'os.path.join' must be a subclass of BaseBackend"),
    ("BACKEND", None, "BACKEND must be a dotted path, got NoneType"),
    ("MASTERS", [], "MASTERS must name at least one master"),
    ("MASTERS", "", "MASTERS must name at least one master"),
    ("MASTERS", None, "MASTERS must be a list"),
    ("MASTERS", {"redis://a"}, "MASTERS must be a list"),
    ("MASTERS", ["redis://a", "redis//x"], "MASTERS: master 2: must start with redis://"),
    ("MASTERS", ["redis://a", None], "MASTERS: master 2: must be a URL string"),
    ("MASTERS", [["redis://a"], ["redis://b"]], "master 1: must be a URL string, got list"),
    ("MASTERS", ["redis://a", ("redis://b",)], "master 2: must be a URL string, got tuple"),
    ("MASTERS", ["redis://a:1/0", "redis://b", "redis://A:1/1"], "masters 1 and 3 are one server"),
    ("MASTERS", ["redis://localhost", "redis://127.0.0.1"], "masters 1 and 2 are one server"),
    ("OPTIONS", [], "OPTIONS must be a dict"),
    (
        "OPTIONS",
        {"passwrd": 1},
        "OPTIONS: connection option 'passwrd' has no effect here, did you mean 'password'?",
    ),
    ("OPTIONS", {"password": 1}, "OPTIONS: password must be a string, got int"),
    ("OPTIONS", {"ssl_ca_certs": "/ca"}, "MASTERS: master 1: option 'ssl_ca_certs' needs a rediss"),
    ("SENTINEL_OPTIONS", {"pasword": "x"}, "SENTINEL_OPTIONS: connection option 'pasword' has no"),
    ("TTL", None, "TTL must be a number of seconds or a timedelta, got NoneType"),
    ("TTL", 0, "TTL must be at least 0.1 s, got 0"),
    ("TTL", -1, "TTL must be at least 0.1 s"),
    ("TTL", 0.09, "TTL must be at least 0.1 s"),
    ("TTL", timedelta(0), "TTL must be at least 0.1 s"),
    ("TTL", True, "TTL must be a number of seconds or a timedelta, got bool"),
    ("TTL", "10", "TTL must be a number of seconds or a timedelta, got str"),
    ("TTL", float("nan"), "TTL must be a number of seconds or a timedelta that ends"),
    ("TTL", float("inf"), "TTL must be a number of seconds or a timedelta that ends"),
    ("TTL", 61, "TTL is 61 s and MAX_TTL is 60 s: lower TTL or raise MAX_TTL"),
    ("TTL", 0.5, "TTL (0.5 s) must be more than twice MASTER_TIMEOUT (0.25 s)"),
    ("MAX_HOLD", 9, "MAX_HOLD (9 s) must not be less than TTL (10 s)"),
    ("WAIT", None, "WAIT must be a number of seconds"),
    ("WAIT", -0.1, "WAIT must be at least 0 s"),
    ("WAIT", 1e10, "WAIT must be at most 604800 s (7 days), got 1e+10"),
    ("WAIT", timedelta(days=8), "WAIT must be at most 604800 s (7 days), got 691200"),
    ("MAX_HOLD", 1e10, "MAX_HOLD must be at most 31536000 s (365 days), got 1e+10"),
    ("MAX_WAITERS", -1, "MAX_WAITERS must be a number of threads"),
    ("MAX_WAITERS", None, "MAX_WAITERS must be a number of threads"),
    ("MASTER_TIMEOUT", 0, "MASTER_TIMEOUT must be at least"),
    ("MASTER_TIMEOUT", 1e10, "MASTER_TIMEOUT must be at most 604800 s (7 days)"),
    ("CONNECT_TIMEOUT", "1", "CONNECT_TIMEOUT must be a number"),
    ("CONNECT_TIMEOUT", 10**400, "CONNECT_TIMEOUT must be a number of seconds"),
    ("CONNECT_TIMEOUT", 10**10, "CONNECT_TIMEOUT must be at most 604800 s (7 days)"),
    ("MAX_TTL", 0, "MAX_TTL must be at least 0.1 s"),
    ("MAX_TTL", 1e10, "MAX_TTL must be at most 31536000 s (365 days)"),
    ("MAX_CLOCK_SKEW", 0, "MAX_CLOCK_SKEW must be at least"),
    ("RESTART_DELAY", "automatic", "RESTART_DELAY must be 'auto' or a number"),
    ("RESTART_DELAY", None, "RESTART_DELAY must be a number"),
    ("RESTART_DELAY", -1, "RESTART_DELAY must be at least 0 s"),
    ("RESTART_DELAY", 1e10, "RESTART_DELAY must be at most 31536000 s (365 days)"),
    ("FENCE_TTL", 1e10, "FENCE_TTL must be at most 31536000 s (365 days)"),
    ("RESTART_DELAY", 7, "0 (off) or at least 1.02 x MAX_TTL + 5 x MAX_CLOCK_SKEW = 63.7 s, got 7"),
    ("RESTART_DELAY", 63.6, "must be 'auto', 0 (off) or at least"),
    ("RESTART_DELAY", 0.001, "must be 'auto', 0 (off) or at least"),
    ("PROFILE", "failver", "PROFILE must be one of None, 'failover', got 'failver', did you mean"),
    ("PROFILE", True, "PROFILE must be one of None, 'failover', got True"),
    ("PROFILE", "failover", "MASTERS names 3 masters. Name one server, or remove PROFILE"),
    ("KEY_PREFIX", "", "KEY_PREFIX must be a string that is not empty"),
    ("KEY_PREFIX", None, "KEY_PREFIX must be a string"),
    ("KEY_PREFIX", "a b", "KEY_PREFIX must contain no space"),
    ("KEY_PREFIX", "a\n", "KEY_PREFIX must contain no space"),
    ("KEY_PREFIX", "a{b}", "KEY_PREFIX must contain no space"),
    ("KEY_PREFIX", "a*", "KEY_PREFIX must contain no space"),
    ("FENCE_TTL", 63, "FENCE_TTL must be at least 1.02 x MAX_TTL + 5 x MAX_CLOCK_SKEW = 63.7 s"),
    ("STATUS", 400, "STATUS must be one of 409, 423, 429, 503, got 400"),
    ("STATUS", "423", "STATUS must be one of"),
    ("STATUS", 423.0, "STATUS must be one of"),
    ("STATUS", [423], "STATUS must be one of"),
    ("ON_UNAVAILABLE", "ignore", "ON_UNAVAILABLE must be one of 'refuse', 'proceed'"),
    ("TOLERATE", "eviction", "TOLERATE must be a list"),
    ("TOLERATE", ["evictions"], "got 'evictions', did you mean 'eviction'?"),
    ("RULES", {}, "RULES must be a list"),
    ("RULES", ["x"], "RULES: rule 1 must be a dict"),
    ("IDEMPOTENCY", [], "IDEMPOTENCY must be a dict"),
]


@pytest.mark.attack
@pytest.mark.parametrize(("key", "value", "message"), BAD, ids=lambda part: repr(part)[:40])
def test_a_bad_value_is_refused_by_name(
    settings: Settings, key: str, value: Any, message: str
) -> None:
    assert message in refusal(settings, **{key: value})


@pytest.mark.parametrize(
    ("redlock", "message"),
    [
        (None, "REDLOCK: the setting is missing"),
        ([], "REDLOCK: must be a dict of aliases, got list"),
        ({}, "REDLOCK: there is no alias 'default'; there is: none"),
        ({"a": {}, "b": {}}, "REDLOCK: there is no alias 'default'; there is: 'a', 'b'"),
        ({"default": "redis://a"}, "REDLOCK['default']: must be a dict, got str"),
    ],
)
def test_a_bad_setting_as_a_whole(settings: Settings, redlock: Any, message: str) -> None:
    settings.REDLOCK = redlock
    with pytest.raises(ImproperlyConfigured) as caught:
        load("default")
    assert str(caught.value).startswith(message)


def test_the_setting_is_missing(settings: Settings) -> None:
    del settings.REDLOCK
    with pytest.raises(InvalidRedlock, match="the setting is missing"):
        load("default")


DJANGO_CACHE = "django.core.cache.backends.redis.RedisCache"
DJANGO_REDIS = "django_redis.cache.RedisCache"


def of_cache(settings: Settings, **config: Any) -> dict[str, Any]:
    settings.CACHES = {"one": config}
    (address,) = store(read(settings, MASTERS=["cache:one"])).addresses
    return {"name": address.name, **address.kwargs}


def test_a_cache_of_django_redis(settings: Settings) -> None:
    found = of_cache(
        settings,
        BACKEND=DJANGO_REDIS,
        LOCATION="rediss://h:1/2",
        OPTIONS={
            "CLIENT_CLASS": "django_redis.client.DefaultClient",
            "USERNAME": "u",
            "PASSWORD": CANARY,
            "SOCKET_TIMEOUT": 4,
            "SOCKET_CONNECT_TIMEOUT": 5,
            "PARSER_CLASS": "redis.connection._HiredisParser",
            "CONNECTION_POOL_KWARGS": {"ssl_cert_reqs": "none", "max_connections": 9},
        },
    )
    assert found == {
        "name": "h:1/2",
        "host": "h",
        "port": 1,
        "db": 2,
        "username": "u",
        "password": CANARY,
        "ssl_cert_reqs": "none",
    }


def test_a_redis_cache_of_django(settings: Settings) -> None:
    found = of_cache(
        settings,
        BACKEND=DJANGO_CACHE,
        LOCATION=["redis://u:url@h?max_connections=9&socket_timeout=5&socket_keepalive=0"],
        OPTIONS={"db": 3, "password": "option", "pool_class": "x.Y"},
    )
    assert found == {
        "name": "h:6379/3",
        "host": "h",
        "port": 6379,
        "db": 3,
        "username": "u",
        "password": "url",
    }


def test_the_options_of_the_alias_win_over_those_of_the_cache(settings: Settings) -> None:
    settings.CACHES = {
        "one": {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://h", "OPTIONS": {"USERNAME": "cache"}}
    }
    (address,) = store(
        read(settings, MASTERS=["cache:one"], OPTIONS={"username": "locks"})
    ).addresses
    assert address.kwargs["username"] == "locks"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (None, "there is no cache 'one' in CACHES, did you mean 'ones'?"),
        ({"BACKEND": DJANGO_REDIS, "LOCATION": ["redis://a", "redis://b"]}, "and its replicas"),
        ({"BACKEND": DJANGO_REDIS, "LOCATION": "redis://a,redis://b"}, "and its replicas"),
        ({"BACKEND": DJANGO_REDIS}, "0 LOCATIONs"),
        (
            {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
            "cache 'one' is not a Redis cache",
        ),
        ({"BACKEND": "no.Where"}, "cache 'one': its BACKEND cannot be imported"),
        (
            {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://m/0", "OPTIONS": {"SENTINELS": []}},
            "behind Sentinel",
        ),
        ({"BACKEND": DJANGO_REDIS, "LOCATION": f"redis://:{CANARY}/@h"}, "bad URL"),
    ],
)
def test_a_cache_that_is_not_a_master(
    settings: Settings, config: dict[str, Any] | None, reason: str
) -> None:
    settings.CACHES = {"one": config} if config else {"ones": {"BACKEND": DJANGO_REDIS}}
    message = refusal(settings, MASTERS=["redis://a", "cache:one"])
    assert "MASTERS: master 2: " in message
    assert reason in message
    assert CANARY not in message


def test_a_cache_and_a_url_may_be_one_server(settings: Settings) -> None:
    settings.CACHES = {"one": {"BACKEND": DJANGO_REDIS, "LOCATION": f"redis://:{CANARY}@a:1/1"}}
    message = refusal(settings, MASTERS=["cache:one", f"redis://:{CANARY}@a:1/2"])
    assert "masters 1 and 2 are one server (a:1/1 and a:1/2)" in message
    assert CANARY not in message


@pytest.mark.parametrize(
    "section",
    [
        {"MASTERS": [f"redis://:{CANARY}/x@a"]},
        {"MASTERS": [f"redis://:{CANARY}@a", f"redis://:{CANARY}@a"]},
        {"MASTERS": [f"redis://:{CANARY}@a"], "TTLL": 1},
        {"OPTIONS": {"password": CANARY, "credential_provider": object()}},
    ],
)
def test_no_error_shows_a_password_not_even_in_its_frames(
    settings: Settings, section: dict[str, Any]
) -> None:
    settings.REDLOCK = {"default": {"MASTERS": THREE, **section}}
    with pytest.raises(InvalidRedlock) as caught:
        load("default")
    error = caught.value
    assert error.__cause__ is None
    assert error.__context__ is None
    assert CANARY not in str(error)
    frames = traceback.TracebackException.from_exception(error, capture_locals=True).stack
    ours = [frame.locals for frame in frames if frame.filename == conf_settings.__file__]
    assert ours
    assert CANARY not in str(ours)


def test_every_duration_that_is_accepted_can_be_waited_for() -> None:
    """Threads and `poll` raise OverflowError for more than they can count."""
    wakeup = Wakeup()
    for seconds in (LONGEST_WAIT, LONGEST):
        wakeup.wake()
        wakeup.wait(duration(seconds, "wait", least=0))
    reader, writer = os.pipe()
    try:
        poll = select.poll()
        poll.register(writer, select.POLLOUT)
        assert poll.poll(LONGEST_WAIT * 1000)
    finally:
        os.close(reader)
        os.close(writer)


class Shelf(BaseBackend):
    """A store of another package, which lists no servers."""


def test_checks_ask_nothing_of_a_store_that_lists_no_servers(settings: Settings) -> None:
    settings.REDLOCK = {"default": {"BACKEND": f"{__name__}.Shelf"}}
    assert not Shelf.servers_are_masters
    assert load("default").store.names == ()
    assert check_settings() == check_deployment() == []
