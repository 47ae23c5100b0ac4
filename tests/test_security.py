"""Defaults, imports and commands that an attacker would look for."""

from __future__ import annotations

import os
import re
import tomllib

import pytest

from redlock_django.backends.redis import backend as redlock
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.exceptions import BadResource
from redlock_django.locking.names import check_resource
from tests.pages import ROOT
from tests.test_architecture import imports, modules

PACKAGE = ROOT / "redlock_django"
DEPLOYMENT = Deployment(names=("a", "b", "c"))


def _importing(module: str) -> set[str]:
    """Return the modules of the package that import a module."""
    return {name for name, path in modules().items() if module in imports(path)}


@pytest.mark.attack
@pytest.mark.parametrize("name", ["fence:r", "lock:r", "master", "held", "tomb:" + "a" * 32])
def test_no_resource_has_the_key_of_something_else(name: str) -> None:
    ours = {
        DEPLOYMENT.marker,
        DEPLOYMENT.held,
        DEPLOYMENT.fence("r"),
        DEPLOYMENT.queue("r"),
        DEPLOYMENT.tomb("a" * 32),
    }
    assert DEPLOYMENT.lock(check_resource(name)) not in ours
    assert DEPLOYMENT.fence(check_resource(name)) not in ours - {DEPLOYMENT.fence("r")}
    with pytest.raises(BadResource):
        check_resource(f"r\r\n{name}")


@pytest.mark.attack
def test_retries_are_random_and_bounded() -> None:
    first, again = ([redlock.retry_delay(number) for number in range(1, 50)] for _ in range(2))
    assert first != again
    assert all(0 < delay <= 0.5 for delay in first)


@pytest.mark.slow
@pytest.mark.attack
def test_nothing_is_pickled() -> None:
    for module in ("pickle", "marshal", "shelve", "copyreg"):
        assert _importing(module) == set()


@pytest.mark.attack
def test_random_is_used_for_delays_and_the_choice_of_a_slot_only() -> None:
    """A child process has its parent's `random`: no token and no name may come from it."""
    assert _importing("random") == {
        "redlock_django.backends.database.backend",
        "redlock_django.backends.redis.backend",
        "redlock_django.backends.zookeeper.slots",
        "redlock_django.locking.leader",
        "redlock_django.wire.links.master",
        "redlock_django.wire.drivers.dialing",
        "redlock_django.testing.masters",
    }
    tokens = (PACKAGE / "backends" / "redis" / "backend.py").read_text()
    assert "partial(random_source(), 16)" in tokens


@pytest.mark.attack
def test_redis_py_with_mixed_up_replies_is_excluded() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (least,) = [re.findall(r"\d+", one) for one in wanted if one.startswith("redis")]
    assert [int(part) for part in least] >= [4, 5, 4]


@pytest.mark.attack
def test_no_command_can_empty_a_server() -> None:
    for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua")]:
        said = re.findall(r"['\"](?:FLUSH\w+|SHUTDOWN|DEBUG|KEYS|CONFIG)['\"]", path.read_text())
        assert not said or path.is_relative_to(PACKAGE / "testing"), (path, said)


def test_tokens_are_drawn_where_a_sandbox_forbids_getrandom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbidden(size: int) -> bytes:
        raise PermissionError

    monkeypatch.setattr(os, "getrandom", forbidden)
    assert redlock.random_source() is os.urandom
    monkeypatch.delattr(os, "getrandom")
    assert redlock.random_source() is os.urandom
