"""docs/how-to/deploy.md and upgrade.md: the configuration and the settings work as written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import run_checks
from django.core.management import get_commands
from django.db.migrations.loader import MigrationLoader

from redlock_django.conf.settings import load
from redlock_django.testing.masters import local_masters
from tests.test_documents import ROOT

if TYPE_CHECKING:
    from pytest_django import Settings

DEPLOY, UPGRADE = (
    (ROOT / page).read_text() for page in ("docs/how-to/deploy.md", "docs/how-to/upgrade.md")
)
# The server of the tests has no TLS, and no users of its own.
ELSEWHERE = ("tls-", "port", "aclfile")


def directives() -> list[tuple[str, str]]:
    found = re.search(r"```text\n(.*?)```", DEPLOY, re.DOTALL)
    assert found
    return [tuple(line.split(" ", 1)) for line in found[1].splitlines()]


@pytest.mark.live
def test_a_server_accepts_the_configuration() -> None:
    lines = [
        (name, value.strip('"')) for name, value in directives() if not name.startswith(ELSEWHERE)
    ]
    arguments = [part for name, value in lines for part in (f"--{name}", value)]
    with local_masters(1, args=arguments) as [master], master.client() as client:
        for name, value in lines:
            assert client.config_get(name) == {name: value}


def test_the_settings_pass_the_checks_of_a_deployment(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKS_PASSWORD", "of a test")
    found = re.search(r"```python\n(.*?)```", DEPLOY, re.DOTALL)
    assert found
    names: dict[str, Any] = {}
    exec(found[1], names)
    settings.REDLOCK = names["REDLOCK"]
    load("default")
    assert run_checks(tags=["redlock"], include_deployment_checks=True) == []


@pytest.mark.parametrize("page", [DEPLOY, UPGRADE])
def test_the_commands_exist(page: str) -> None:
    named = set(re.findall(r"manage\.py (\w+)", page))
    assert named
    assert named <= get_commands().keys()


def test_every_migration_can_be_undone() -> None:
    migrations = MigrationLoader(None).disk_migrations
    ours = [migration for (app, _), migration in migrations.items() if app == "redlock_django"]
    assert len(ours) >= 7
    assert all(operation.reversible for migration in ours for operation in migration.operations)
