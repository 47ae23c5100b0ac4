"""`manage.py redlock_init` on real masters: it changes all masters or none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import StringIO
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings
from pytest_django import Settings

from redlock_django import QuorumUnreachable, lock, locks
from redlock_django.management.commands import redlock_init
from redlock_django.testing.masters import LocalMaster, local_masters
from redlock_django.wire.servers import trust_declaration as declaration
from redlock_django.wire.servers.trust import NotUpYet, check
from tests.app.conftest import DATABASE, MEMORY
from tests.operate.commands import run
from tests.operate.misconfigured import misconfigure
from tests.timeouts import generous_timeouts
from tests.waiting import until

pytestmark = pytest.mark.live

MARKER = "redlock:master"
NEW = "new: run 'manage.py redlock_init'"


def redlock(masters: list[LocalMaster], **keys: Any) -> dict[str, Any]:
    patient = generous_timeouts(keys.get("TTL", 10))
    return {"default": {"MASTERS": [master.url for master in masters], **patient, **keys}}


@pytest.fixture
def site(masters: list[LocalMaster]) -> Iterator[list[LocalMaster]]:
    with override_settings(REDLOCK=redlock(masters)):
        yield masters


def init(*arguments: str) -> str:
    out = StringIO()
    call_command("redlock_init", *arguments, stdout=out, stderr=StringIO())
    return out.getvalue()


def refused(*arguments: str) -> str:
    with pytest.raises(CommandError) as caught:
        init(*arguments)
    assert caught.value.returncode == 2
    assert "Nothing was changed" in str(caught.value)
    return str(caught.value)


def markers(masters: list[LocalMaster]) -> list[bytes | None]:
    found = []
    for master in masters:
        with master.client() as client:
            found.append(client.get(MARKER))
    return found


@pytest.mark.slow
def test_new_masters_are_not_counted_until_declared(
    site: list[LocalMaster], caplog: pytest.LogCaptureFixture
) -> None:
    until(lambda: run("redlock_status").said.count(f"{NEW} (if it was emptied") == 5)
    with pytest.raises(QuorumUnreachable, match=f"127.0.0.1:[0-9]+: {NEW}"):
        lock("order:1").acquire()
    logged = [r.getMessage() for r in caplog.records if r.getMessage().startswith("redlock master")]
    assert logged
    assert all(f" {NEW} " in message for message in logged), logged
    trusted = f"{NEW} (if it was emptied or restarted: trusted"
    until(lambda: run("redlock_status").said.count(trusted) == 5)  # of a busy one no answer
    assert init().count("trusted now") == 5
    # In the process that has met them as new ones, too.
    with lock("order:1", wait=30) as held:
        assert held.locked


def test_an_emptied_master_is_not_called_new(site: list[LocalMaster]) -> None:
    init()
    with site[4].client() as client:
        client.flushall()
    first = run("redlock_status").said
    text = "new or emptied: has no marker yet"
    assert text in first or "was emptied or is new: trusted in" in first  # if it has a marker again
    until(lambda: "was emptied or is new: trusted in" in run("redlock_status").said)
    assert NEW not in first.replace("if it is new: run 'manage.py redlock_init'", "")


def test_a_second_run_has_nothing_to_do(site: list[LocalMaster]) -> None:
    init()
    before = markers(site)
    assert init() == "All 5 masters are already trusted.\n"
    assert markers(site) == before


def test_a_master_that_is_down_stops_the_declaration(site: list[LocalMaster]) -> None:
    site[3].kill()
    assert f"127.0.0.1:{site[3].port} refused the connection" in refused()
    assert markers([site[0], site[1]]) == [None, None]


def test_the_command_waits_for_masters_that_are_being_started(
    site: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    down = [site[1], site[3]]
    for master in down:
        master.kill()
    restart = SimpleNamespace(sleep=lambda seconds: down.pop().restart())
    monkeypatch.setattr(declaration, "time", restart)
    assert init("--wait", "600").count("trusted now") == 5
    assert down == []


def test_masters_that_do_not_answer_in_time_are_named(
    site: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(redlock_init, "clock", lambda: now[0])
    monkeypatch.setattr(declaration, "clock", lambda: now[0])
    pass_time = SimpleNamespace(sleep=lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(declaration, "time", pass_time)
    for master in (site[1], site[3]):
        master.kill()
    said = refused("--wait", "3")
    assert now == [3.0]
    assert "Nothing was changed after 3 s:" in said
    for master in (site[1], site[3]):
        assert f"127.0.0.1:{master.port} refused the connection" in said
    assert markers([site[0], site[2], site[4]]) == [None] * 3


def test_a_fault_that_does_not_pass_is_not_waited_for(
    site: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declaration, "time", None)
    misconfigure(site[0], site[1], site[2])
    site[3].kill()
    said = refused("--wait", "600")
    assert "Nothing was changed:" in said
    assert f"127.0.0.1:{site[1].port}" in said
    assert f"127.0.0.1:{site[3].port} refused the connection" in said
    with pytest.raises(NotUpYet, match="loading"):
        check({"run_id": "a", "redis_version": "7.0.0", "loading": "1"}, frozenset())


@pytest.mark.parametrize("key", ["redlock:lock:order:1", "redlock:fence:order:1"])
def test_a_lock_or_a_fence_on_any_master_stops_the_declaration(
    site: list[LocalMaster], key: str
) -> None:
    with site[4].client() as client:
        client.set(key, "1")
    assert key in refused()
    assert markers(site) == [None] * 5


def test_a_minority_that_is_new_is_trusted_if_no_lock_was_ever_acquired(
    site: list[LocalMaster],
) -> None:
    init()
    site[2].restart()
    assert init() == f"127.0.0.1:{site[2].port}: trusted now\n"


def test_a_majority_that_is_new_waits_if_another_master_is_trusted(site: list[LocalMaster]) -> None:
    init()
    for master in site[2:]:
        master.restart()
    said = run("redlock_init")
    assert said.status == 0
    assert said.out.count("trusted in 63.") == 3
    assert f"127.0.0.1:{site[0].port} is already trusted" in said.said


def test_a_new_master_waits_if_locks_have_been_acquired(site: list[LocalMaster]) -> None:
    init()
    with lock("order:1"):
        pass
    site[2].restart()
    said = run("redlock_init")
    assert said.out.count("trusted in 63.") == 1
    assert "stores 'redlock:fence:order:1', so locks have been acquired" in said.said
    assert "--force" in said.said


def test_force_asks_and_names_the_risk(site: list[LocalMaster]) -> None:
    init()
    site[2].restart()
    third = f"127.0.0.1:{site[2].port}"
    assert "not a terminal" in refused("--force", third)
    with mock.patch("sys.stdin.isatty", return_value=True):
        with mock.patch("builtins.input", return_value="no") as asked:
            assert "Nothing was changed" in refused("--force", third)
        asked.assert_called_once_with()  # A prompt would be written to stdout.
        assert markers(site)[2] is None
        with mock.patch("builtins.input", return_value="yes"):
            assert "trusted now" in init("--force", third)
        assert "There is no master 'nowhere'" in refused("--force", "nowhere")
    assert "All 5 masters are already trusted" in init()


@pytest.mark.slow
def test_force_spares_the_delay_after_a_clean_shutdown_with_aof() -> None:
    """Without the command no client counts the server: it cannot know that the end was clean."""
    options = ["--appendonly", "yes", "--appendfsync", "everysec"]
    with (
        local_masters(1, args=options) as [server],
        override_settings(REDLOCK=redlock([server], RESTART_DELAY=300, TTL=50)),
    ):
        init()
        held = lock("order:1", renew=False).acquire()
        with server.client() as client:
            client.shutdown()
        server.process.wait()
        server.start()
        log = server.log_path.read_text()
        assert "DB loaded from append only file" in log.rpartition("bye bye")[2]
        until(lambda: "restarted: trusted in 29" in refusal())
        with (
            mock.patch("sys.stdin.isatty", return_value=True),
            mock.patch("builtins.input", return_value="yes"),
        ):
            assert "trusted now" in init("--force", f"127.0.0.1:{server.port}")
        lock("order:2", wait=30).acquire().release()
        held.verify()
        held.release()
        server.kill()
        server.start()
        until(lambda: "restarted: trusted in 29" in refusal())
        locks.close()


def refusal() -> str:
    with pytest.raises(QuorumUnreachable) as caught:
        lock("order:2").acquire()
    return str(caught.value)


def test_changed_values_need_a_reconfiguration(site: list[LocalMaster]) -> None:
    init()
    with override_settings(REDLOCK=redlock(site, MAX_TTL=30)):
        with pytest.raises(QuorumUnreachable, match="--reconfigure"):
            lock("order:1").acquire()
        assert "--reconfigure" in refused()
        # The larger of both delays counts: there may be locks of up to 60 s.
        said = init("--reconfigure")
    assert len(re.findall(r"trusted in 63\.\d s|trusted in 63\.7 s", said)) == 5
    locks.close()
    with pytest.raises(QuorumUnreachable, match="ttl=30000"):
        lock("order:1").acquire()


def test_a_process_without_profile_is_refused_beside_those_with_it(
    masters: list[LocalMaster],
) -> None:
    alone = redlock(masters[:1], RESTART_DELAY=80)
    with_profile = redlock(masters[:1], RESTART_DELAY=80, PROFILE="failover")
    with override_settings(REDLOCK=with_profile):
        init()
        with lock("order:1"):
            pass
    with override_settings(REDLOCK=alone):
        with pytest.raises(QuorumUnreachable, match="profile=failover") as unreachable:
            lock("order:1").acquire()
        assert "must have the same MASTERS, PROFILE, MAX_TTL" in str(unreachable.value)
        said = refused()
        assert "must have the same MASTERS, PROFILE, MAX_TTL" in said
        assert "profile=failover" in said
        assert "trusted in " in init("--reconfigure")
    locks.close()
    with override_settings(REDLOCK=with_profile), pytest.raises(QuorumUnreachable, match="PROFILE"):
        lock("order:1").acquire()


def test_a_server_that_may_have_forgotten_locks_is_not_trusted_sooner_by_new_values(
    masters: list[LocalMaster],
) -> None:
    (master,) = masters[:1]
    with override_settings(REDLOCK=redlock([master], PROFILE="failover")):
        init()
    with master.client() as client:
        marker = client.get(MARKER)
        client.set(MARKER, b"0" * 40 + marker[40:])  # a replica has this marker when promoted
        with override_settings(REDLOCK=redlock([master])):  # RESTART_DELAY is 0
            assert "is not trusted yet, because it may have forgotten" in refused("--reconfigure")
            client.set(MARKER, marker)
            assert "trusted in 78." in init("--reconfigure")


def test_added_masters_are_not_trusted_before_old_locks_expire(masters: list[LocalMaster]) -> None:
    with override_settings(REDLOCK=redlock(masters[:3])):
        init()
        before = markers(masters)
    # Clients with these settings would count the new masters after 12.75 s.
    with override_settings(REDLOCK=redlock(masters, MAX_TTL=10)):
        assert "at least 63.75 s" in refused("--reconfigure")
    assert markers(masters) == before
    with override_settings(REDLOCK=redlock(masters)):
        assert init("--reconfigure").count("trusted in 63.") == 5


def test_one_server_under_two_names_stops_the_declaration(masters: list[LocalMaster]) -> None:
    urls = [masters[0].url, masters[0].unix_url, masters[1].url]
    with override_settings(REDLOCK={"default": {"MASTERS": urls}}):
        assert "is the same server as" in refused()
    assert markers(masters[:2]) == [None, None]


@pytest.mark.parametrize(
    ("backend", "using", "problems"),
    [
        (DATABASE, "default", ["['default'] has a store without masters", "redlock_status"]),
        (MEMORY, "default", ["no masters"]),
        (MEMORY, "nope", ["no alias 'nope'"]),
    ],
)
def test_an_alias_without_masters_is_refused(backend: str, using: str, problems: list[str]) -> None:
    with override_settings(REDLOCK={"default": {"BACKEND": backend}}):
        ran = run("redlock_init", "--using", using)
    assert ran.status == 2
    assert all(problem in ran.said for problem in problems)


def test_a_removed_master_is_counted_once(site: list[LocalMaster]) -> None:
    init()
    before = markers(site)
    one = ("--removed", site[1].url)
    with override_settings(REDLOCK=redlock(site[:1], RESTART_DELAY=70)):
        # Three of five go on under the old settings, however often one is named.
        assert "would go on to lock" in refused("--reconfigure", *one, *one)
        said = refused("--reconfigure", *one, "--removed", site[0].url)
        assert f"--removed: 127.0.0.1:{site[0].port} is still in MASTERS" in said
        assert markers(site) == before
        assert "trusted in " in init("--reconfigure", *one, "--removed", site[2].url)


@pytest.mark.parametrize("arguments", [[], ["--force", "1"]])
def test_removed_without_a_reconfiguration_is_refused(
    settings: Settings, arguments: list[str]
) -> None:
    settings.REDLOCK = {"default": {"MASTERS": ["redis://127.0.0.1:1/0"]}}
    ran = run("redlock_init", "--removed", "redis://127.0.0.1:2/0", *arguments)
    assert (ran.status, ran.said) == (2, "--removed needs --reconfigure.")


def test_every_reason_of_a_refusal_is_named_at_once(site: list[LocalMaster]) -> None:
    with override_settings(REDLOCK=redlock(site[:3], MAX_TTL=30)):
        init()
    with site[4].client() as client:
        client.set("redlock:fence:order:1", "1")
    said = refused()
    assert said.count("belongs to a deployment with ") == 3
    assert f"127.0.0.1:{site[4].port} is not new: it stores 'redlock:fence:order:1'" in said
    assert markers(site)[3:] == [None, None]
