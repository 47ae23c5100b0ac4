"""The minimal ACL permissions, on every installed server: they suffice, and all are needed."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError

from redlock_django import QuorumUnreachable, ResourceLocked, lock, resume_lock
from redlock_django.engine.protocol.commands import COMMANDS
from redlock_django.locking.services import locks
from redlock_django.operate.inspection import held_locks
from redlock_django.testing.masters import LocalMaster, find_server, local_masters
from redlock_django.wire.servers.acl import LOCKS, LOOKING, WAITING, least_acl
from tests.app.checking import found
from tests.live.left_over import nothing_left
from tests.losses import ends_lost
from tests.operate.commands import run
from tests.operate.planted import on
from tests.pages import ROOT
from tests.timeouts import redlock_of
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = [pytest.mark.live, pytest.mark.django_db]

DOCS = ROOT / "docs/reference/acl.md"
BY_HAND = {"eval", "evalsha", "script|load", "info", "subscribe"}  # in no script
SERVERS = {
    Path(found).name: found
    for found in (find_server(), shutil.which("valkey-server"), shutil.which("redis-server"))
    if found
}


@pytest.fixture(scope="module", params=list(SERVERS.values()), ids=list(SERVERS))
def three(request: pytest.FixtureRequest) -> Iterator[list[LocalMaster]]:
    """Three masters with an ACL user for locks and one for operators."""
    with local_masters(3, binary=request.param) as masters:
        for master in masters:
            set_rights(master, "shop", "on", ">canary", *least_acl("redlock").split())
            rights = least_acl("redlock", looking=True).split()
            set_rights(master, "operator", "on", ">canary", *rights)
        yield masters


def set_rights(master: LocalMaster, user: str, *rights: str) -> None:
    with master.client() as client:
        client.execute_command("ACL", "SETUSER", user, *rights)


@contextmanager
def changed_rights(masters: list[LocalMaster], *rights: str) -> Iterator[None]:
    """Change the rights of the user for locks in the block."""
    for master in masters:
        set_rights(master, "shop", *rights)
    try:
        yield
    finally:
        for master in masters:
            set_rights(master, "shop", *least_acl("redlock").split())


@pytest.fixture
def site(three: list[LocalMaster], settings: Settings) -> list[LocalMaster]:
    """The empty masters, with an alias for each user."""
    for master in three:
        with master.client() as client:
            client.flushall()
            client.script_flush()
            client.execute_command("ACL", "LOG", "RESET")
    urls = [master.url for master in three]
    shop, operator = (
        redlock_of(*urls, OPTIONS={"username": user, "password": "canary"})["default"]
        for user in ("shop", "operator")
    )
    settings.REDLOCK = {"default": shop, "operator": operator}
    assert run("redlock_init", "--using", "operator").status == 0
    return three


def scripts(*names: str) -> set[str]:
    """Return the commands that these scripts call."""
    folder = files("redlock_django.engine.protocol").joinpath("lua")
    text = "".join(folder.joinpath(f"{name}.lua").read_text() for name in names)
    said = re.findall(r"redis\.p?call\('(\w+)'", text)
    return {command.lower() for command in said}


def test_every_permission_is_needed_by_a_script() -> None:
    every = {
        path.name.removesuffix(".lua")
        for path in files("redlock_django.engine.protocol").joinpath("lua").iterdir()
    }
    of_locks = {command.name for command in COMMANDS} | {
        "index", "join", "ownership", "queue", "refuse", "set_locks", "trusted",
    }  # fmt: skip
    assert scripts(*of_locks) | BY_HAND == {*LOCKS, *WAITING}
    assert scripts(*every) | BY_HAND | {"scan"} == {*LOCKS, *WAITING, *LOOKING}  # by redlock_init
    assert len({*LOCKS, *WAITING, *LOOKING}) == len(LOCKS + WAITING + LOOKING)


def test_the_documentation_lists_the_same_permissions() -> None:
    text = DOCS.read_text()
    assert least_acl("redlock") + "\n" in text
    assert least_acl("redlock", looking=True) + "\n" in text


@pytest.mark.attack
def test_lock_life_cycle_with_the_permissions_for_locks(site: list[LocalMaster]) -> None:
    with lock("order:1", "user:7", ttl=30) as held:
        with pytest.raises(ResourceLocked):  # held by another client, as the masters know
            locks["default"].backend.acquire(("order:1",), 5, 0, "{}")
        # A late master that did not know the script yet may have granted the other attempt instead.
        until(lambda: held.extend() and owned(site, "order:1", held) == 3, what="on all masters")
        with site[2].client() as client:
            client.delete("redlock:lock:order:1")  # to be healed
        until(lambda: held.extend() and owned(site, "order:1", held) == 3, what="healed")
        with site[1].client() as client:
            client.script_flush()
        assert held.extend() > 0
    lease = locks["default"].backend.acquire(("order:1",), 5, 0, "{}")
    release = threading.Timer(0.2, locks["default"].backend.release, (lease,))
    release.start()
    with lock("order:1", wait=20):  # and be woken
        pass
    release.join(60)
    with lock("order:1") as given:
        ticket = given.transfer()
    with resume_lock(ticket):
        pass
    nothing_left(site, 6)
    for master in site:
        with master.client() as client:
            assert client.zcount("redlock:held", 0, "+inf") == 0
            # No command was refused, not even an optional one.
            assert denials(client) == []


async def test_lock_life_cycle_in_a_loop(site: list[LocalMaster]) -> None:
    async with lock("order:1", wait=2) as held:
        assert await held.aextend() > 0
    await locks.aclose()
    nothing_left(site, 6)


def test_operator_commands_with_their_permissions(site: list[LocalMaster]) -> None:
    operator = ("--using", "operator")
    with ends_lost(), lock("order:1") as held:
        until(lambda: on(site, "order:1") == 3, what="on all masters")
        for search in ("", "order"):
            assert len(held_locks("operator", search=search).locks) == 1
        assert run("list_locks", *operator, "--format=json").json["total"] == 1
        status = run("redlock_status", *operator, "--format=json")
        assert (status.status, status.said) == (0, "")
        assert status.json["masters"][0]["held"] == 1
        freed = run("release_lock", "order:1", *operator, "--noinput", "--holder", held.fingerprint)
        assert freed.status == 0
    assert run("redlock_init", "--using", "operator").status == 0
    for master in site:
        with master.client() as client:
            assert denials(client) == []


def test_inspection_without_permission_is_reported(site: list[LocalMaster]) -> None:
    page = held_locks()
    assert all("its ACL forbids" in reason for reason in page.silent.values())
    assert all("docs/reference/acl.md" in reason for reason in page.silent.values())
    ran = run("list_locks")
    assert ran.status == 3
    # It may query the health of its masters.
    status = run("redlock_status", "--format=json")
    assert (status.status, status.said) == (0, "")
    assert status.json["masters"][0]["held"] is None
    assert set(status.json["masters"][0]["forbidden"]) == set(LOOKING)


@pytest.mark.parametrize("missing", [*LOCKS, "keys"])
def test_a_missing_permission_is_named(site: list[LocalMaster], missing: str) -> None:
    rights = ["resetkeys", "~other:*"] if missing == "keys" else [f"-{missing}"]
    with changed_rights(site[:1], *rights):
        ran = run("redlock_status", "--format=json")
        checked = found(deploy=True, tag="redlock_masters", databases=["default"])
    assert {*checked} == {"E025"}
    assert re.search(rf"its ACL forbids .*{re.escape(missing)}", checked["E025"])
    assert least_acl("redlock") in checked["E025"]
    assert "canary" not in f"{checked} {ran}"
    assert ran.status == 1
    assert [[f["code"] for f in m["faults"]] for m in ran.json["masters"]] == [["acl"], [], []]
    assert ran.json["masters"][0]["counted"] is False
    assert re.search(rf"its ACL forbids .*{re.escape(missing)}", ran.said)
    assert f"acl: grant its user {least_acl('redlock')} (docs/reference/acl.md)" in ran.said


@pytest.mark.parametrize("missing", [c for c in WAITING if c not in ("publish", "subscribe")])
def test_missing_permission_for_waiters(site: list[LocalMaster], missing: str) -> None:
    with changed_rights(site[:1], f"-{missing}"):
        ran = run("redlock_status", "--format=json")
    first = ran.json["masters"][0]
    assert [fault["code"] for fault in first["faults"]] == ["waiting"]
    assert first["counted"] is True
    assert missing in first["faults"][0]["text"]


def test_nothing_else_is_allowed(site: list[LocalMaster]) -> None:
    user: Any = Redis(port=site[0].port, username="shop", password="canary")
    operator: Any = Redis(port=site[0].port, username="operator", password="canary")
    try:
        for who in (user, operator):
            for command in (["FLUSHALL"], ["KEYS", "*"], ["CONFIG", "GET", "*"], ["ACL", "LIST"]):
                with pytest.raises(NoPermissionError):
                    who.execute_command(*command)
            with pytest.raises(NoPermissionError):
                who.get("session:1")
            with pytest.raises(Exception, match="key"):
                who.eval("return redis.call('GET', 'session:1')", 0)
        with pytest.raises(NoPermissionError):
            user.scan()
    finally:
        user.close()
        operator.close()


def test_a_lock_without_permission_has_no_quorum(site: list[LocalMaster]) -> None:
    with (
        changed_rights(site, "-info"),
        pytest.raises(QuorumUnreachable, match="its ACL forbids 'info'"),
    ):
        lock("order:1").acquire()


def owned(masters: list[LocalMaster], resource: str, held: Any) -> int:
    """Return on how many masters a resource is locked by this lock."""
    many = 0
    for master in masters:
        with master.client() as client:
            value: Any = client.get(f"redlock:lock:{resource}") or b""
            many += value.startswith(held._held_lease.lease.token.encode())
    return many


def denials(client: Any) -> list[bytes]:
    """Return the commands that the servers refused in this test, without optional commands."""
    found = []
    for entry in client.execute_command("ACL", "LOG"):
        said = entry if isinstance(entry, dict) else dict(zip(entry[::2], entry[1::2], strict=True))
        found += [said[name] for name in (b"object", "object") if name in said]
    return [command for command in found if command != b"client|setinfo"]
