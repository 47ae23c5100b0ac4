"""RELEASE: operators see which version of the code each holder runs, and find old ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from django.test.utils import override_settings

from redlock_django import InvalidRedlock, lock
from redlock_django.locking.services import locks
from redlock_django.operate.inspection import held_locks
from redlock_django.testing import memory_masters
from tests.operate.commands import run
from tests.operate.conftest import LIST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.test import Client
    from pytest_django import Settings

OLD, NEW = "2.3.0", "2.4.1+f00"


@pytest.fixture
def held(settings: Settings) -> Iterator[None]:
    """A lock of old code and one of new code."""
    alias = {"MASTERS": ["redis://10.0.0.1"]}
    redlock = {"default": {**alias, "RELEASE": NEW}, "old": {**alias, "RELEASE": OLD}}
    with (
        override_settings(REDLOCK=redlock), memory_masters(),
        lock("order:1", using="old"), lock("order:2"),
    ):  # fmt: skip
        yield


def listed(*arguments: str) -> str:
    return run("list_locks", *arguments).out


@pytest.mark.usefixtures("held")
def test_operators_see_and_find_releases(admin_client: Client) -> None:
    for shown in (listed(), admin_client.get(LIST).content.decode()):
        assert OLD in shown
        assert NEW in shown
    found = json.loads(listed("--format", "json"))["locks"]
    releases = {one["resource"]: one["holder"]["release"] for one in found}
    assert releases == {"order:1": OLD, "order:2": NEW}
    assert [one.name for one in held_locks(search=OLD).locks] == ["order:1"]


def test_without_the_setting_holders_have_no_release() -> None:
    with memory_masters(), lock("order:1"):
        (one,) = json.loads(listed("--format", "json"))["locks"]
        assert "release" not in one["holder"]


@pytest.mark.parametrize(
    ("release", "message"), [(7, "RELEASE must be a string"), ("x" * 65, "at most 64 characters")]
)
def test_a_bad_release_is_named(settings: Settings, release: object, message: str) -> None:
    settings.REDLOCK = {"default": {"MASTERS": ["redis://10.0.0.1"], "RELEASE": release}}
    with pytest.raises(InvalidRedlock, match=message):
        locks["default"]
