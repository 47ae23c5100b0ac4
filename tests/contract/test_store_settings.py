"""Settings of databases and ZooKeeper: which are refused, and of which `check` warns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.security import OPEN_ACL_UNSAFE

from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.services import locks
from tests.app.checking import found
from tests.contract.stores import DATABASE, ZOOKEEPER, Database

if TYPE_CHECKING:
    from pytest_django import Settings


SECRET = "swordfish-9317"
SQLITE = "django.db.backends.sqlite3"
Databases = Callable[[str, dict[str, Any]], None]
OF_ZOOKEEPER: list[tuple[dict[str, Any], str]] = [
    ({"HOSTS": []}, "HOSTS must name at least one server"),
    ({"HOSTS": "zk1:2181"}, "HOSTS must be a list"),
    ({"HOSTS": ["user:pw@zk1:2181"]}, "credentials are in OPTIONS"),
    ({"HOSTS": ["zk1:2181/chroot"]}, "the path of all locks is ROOT"),
    ({"HOSTS": ["zk1:port"]}, "HOSTS must be a list of hosts with ports"),
    ({"ROOT": "redlock"}, "ROOT must be an absolute path"),
    ({"ROOT": "/"}, "ROOT must be an absolute path"),
    ({"SESSION_TIMEOUT": 0.1}, "SESSION_TIMEOUT must be at least 0.2 s"),
    ({"SESSION_TIMEOUT": 1e10}, "SESSION_TIMEOUT must be at most 604800 s"),
    ({"ZOOKEEPER_TIMEOUT": 1e10}, "ZOOKEEPER_TIMEOUT must be at most 604800 s"),
    ({"OPTIONS": {"auth": 1}}, "OPTIONS: unknown key 'auth'"),
    ({"OPTIONS": {"auth_data": [SECRET]}}, "auth_data must be a list of pairs"),
    ({"OPTIONS": {"auth_data": [("sasl", SECRET)]}}, "use sasl_options"),
    ({"OPTIONS": {"ca": "ca.pem"}}, "ca has no effect without use_ssl: set use_ssl to True"),
    ({"OPTIONS": {"verify_certs": True, "use_ssl": False}}, "verify_certs has no effect"),
    ({"OPTIONS": {"keyfile": "k", "use_ssl": True}}, "keyfile has no effect without certfile"),
    ({"OPTIONS": {"sasl_options": {"password": SECRET}}}, "with the key 'mechanism'"),
    (
        {"OPTIONS": {"use_ssl": True, "check_hostname": True, "verify_certs": False}},
        "check_hostname needs verify_certs: set both or none",
    ),
    ({"OPTIONS": {"default_acl": [SECRET]}}, "a list of ACLs of kazoo.security"),
    ({"MASTERS": ["redis://x"]}, "unknown key 'MASTERS'"),
    ({"HOST": ["zk1"]}, "did you mean 'HOSTS'"),
]
OF_DATABASES: list[tuple[dict[str, Any], str]] = [
    ({"DATABASE": "nowhere"}, "DATABASE 'nowhere' is not in DATABASES; there is: 'default'"),
    ({"DATABASE": ""}, "DATABASE must be a string that is not empty"),
    ({"DATABASE": "oracle"}, "DATABASE 'oracle' is oracle: locks can be kept in"),
    ({"DATABASE": "uri"}, "Write the path of the file"),
    ({"CONNECTIONS": 0}, "CONNECTIONS must be a number from 1 to 100, got 0"),
    ({"POLL": 0}, "POLL must be at least 0.005 s"),
    ({"POLL": 1e10}, "POLL must be at most 604800 s"),
    ({"DATABASE_TIMEOUT": 1e10}, "DATABASE_TIMEOUT must be at most 604800 s"),
    ({"MASTERS": ["redis://x"]}, "unknown key 'MASTERS': it is a key of redlock"),
    ({"HOSTS": ["zk1"]}, "of redlock_django.backends.zookeeper.ZooKeeperBackend. Remove HOSTS"),
    ({"DATABSE": "default"}, "did you mean 'DATABASE'"),
]


def sections(rows: list[tuple[dict[str, Any], str]], **needed: Any) -> list[Any]:
    """Return each row as a parameter with the settings that all need, named by its message."""
    return [pytest.param({**needed, **section}, said, id=said) for section, said in rows]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        *sections(OF_ZOOKEEPER, BACKEND=ZOOKEEPER, HOSTS=["zk1"]),
        *sections(OF_DATABASES, BACKEND=DATABASE),
    ],
)
def test_bad_settings_are_refused(
    settings: Settings, databases: Databases, section: dict[str, Any], message: str
) -> None:
    databases("oracle", {"ENGINE": "tests.contract.oracle", "NAME": "x"})
    databases("uri", {"ENGINE": SQLITE, "NAME": "file:/srv/x.sqlite3?cache=private"})
    settings.REDLOCK = {"default": section}
    with pytest.raises(InvalidRedlock, match="REDLOCK") as refused:
        locks["default"]
    assert message in str(refused.value)
    assert SECRET not in str(refused.value)


def test_options_of_tls_that_are_none_are_no_options(settings: Settings) -> None:
    options = {"use_ssl": False, "ca": None, "certfile": None, "keyfile": None}
    settings.REDLOCK = {"default": {"BACKEND": ZOOKEEPER, "HOSTS": ["zk1"], "OPTIONS": options}}
    assert locks["default"].settings.alias == "default"


@pytest.mark.attack
def test_deploy_warns_of_open_nodes(settings: Settings) -> None:
    section: dict[str, Any] = {"BACKEND": ZOOKEEPER, "HOSTS": ["zk1", "zk2"]}
    settings.REDLOCK = {"default": section}
    messages = found(deploy=True)
    assert "every client of the ZooKeeper servers can delete locks" in messages["W022"]
    section["OPTIONS"] = {"auth_data": [("digest", "a:b")]}
    assert "W022" not in found(deploy=True)
    section["OPTIONS"] = {"default_acl": OPEN_ACL_UNSAFE, **section["OPTIONS"]}
    assert "W022" in found(deploy=True)


def test_deploy_names_the_missing_promises_of_sqlite(sqlite: Database) -> None:
    assert "W019" not in found()
    assert "exclude the processes of this machine only" in found(deploy=True)["W019"]


def test_deploy_refuses_sqlite_in_memory(settings: Settings, databases: Databases) -> None:
    databases("memory", {"ENGINE": SQLITE, "NAME": ":memory:"})
    settings.REDLOCK = {"default": {"BACKEND": DATABASE, "DATABASE": "memory"}}
    assert "in the memory of one process" in found(deploy=True)["E018"]


class NoLocksHere:
    """A router that keeps the tables of locks out of every database."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return app_label != "redlock_django"


def test_a_router_that_forbids_the_tables_is_reported(
    settings: Settings, databases: Databases
) -> None:
    databases("pg2", {"ENGINE": "django.db.backends.postgresql", "NAME": "x"})
    settings.REDLOCK = {"default": {"BACKEND": DATABASE, "DATABASE": "pg2"}}
    assert "E017" not in found()
    settings.DATABASE_ROUTERS = [f"{__name__}.NoLocksHere"]
    assert "allow_migrate()" in found()["E017"]
