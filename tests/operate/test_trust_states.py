"""Masters that are not trusted: `redlock_status` and `redlock_init` give the same answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from redlock_django.backends.redis import RedisBackend
from redlock_django.locking.services import locks
from redlock_django.testing.masters import LocalMaster
from redlock_django.wire.servers import probe
from redlock_django.wire.servers.info import run_of
from redlock_django.wire.servers.probe import Probe
from tests.looking import looking_at
from tests.operate.commands import run
from tests.timeouts import redlock_of

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.live

FENCE = "redlock:fence:order:1"
INIT = "run 'manage.py redlock_init'"


class State(NamedTuple):
    """A state of one master: the run in its marker, seconds until it is trusted, and a fence."""

    run: str = ""
    ready_in: int = 0
    has_fence: bool = False


STATES = {
    "new": State(),
    "trusted": State("this"),
    "met": State("this", 60),
    "restarted": State("another"),
    "restarted with a fence": State("another", has_fence=True),
    "met with a fence": State("this", 60, has_fence=True),
    "fence without marker": State(has_fence=True),
}

TABLE = [
    ("new", "new", "new"),
    ("met", "met", "met"),
    ("new", "met", "restarted"),
    ("restarted", "restarted", "restarted"),
    ("restarted with a fence",) * 3,
    ("met with a fence",) * 3,
    ("restarted with a fence", "new", "met"),
    ("fence without marker", "new", "new"),
    ("trusted", "trusted", "new"),
    ("trusted", "trusted", "met"),
    ("trusted", "trusted", "restarted"),
    ("trusted", "restarted with a fence", "new"),
    ("trusted", "met with a fence", "met"),
    ("new",),
    ("met",),
    ("restarted",),
    ("restarted with a fence",),
    ("met with a fence",),
]


@pytest.fixture(autouse=True)
def _no_client_meets_them(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep redlock_status from connecting in the background, which changes markers."""
    monkeypatch.setattr(RedisBackend, "connect", lambda backend: None)
    yield
    locks.close()


def put(master: LocalMaster, state: State, fingerprint: str) -> None:
    """Make a master what it is in a state."""
    with master.client() as client:
        info = {name: str(value) for name, value in client.info().items()}
        seconds, _ = client.time()
        ready = (int(seconds) + (state.ready_in or -1)) * 1_000_000
        run_id = run_of(info) if state.run == "this" else "0" * 40
        if state.run:
            client.set("redlock:master", f"{run_id} {ready} {fingerprint}")
        if state.has_fence:
            client.set(FENCE, "1")


def status_lines(masters: Sequence[LocalMaster]) -> list[str]:
    """Return what redlock_status says of each master, "" where it has no fault."""
    said = run("redlock_status").said.splitlines()
    names = [f"127.0.0.1:{master.port} " for master in masters]
    return [next((line for line in said if line.startswith(name)), "") for name in names]


@pytest.mark.parametrize("row", TABLE, ids="-".join)
def test_status_and_init_agree(
    row: tuple[str, ...], masters: list[LocalMaster], settings: Settings
) -> None:
    servers, states = masters[: len(row)], [STATES[name] for name in row]
    alone: dict[str, Any] = {"PROFILE": "failover"} if len(row) == 1 else {}
    settings.REDLOCK = redlock_of(*(one.url for one in servers), **alone)
    fingerprint = locks["default"].settings.store.deployment.fingerprint  # type: ignore[attr-defined]
    for master, state in zip(servers, states, strict=True):
        put(master, state, fingerprint)
    lines = status_lines(servers)
    is_refused = any(state.has_fence for state in states)
    for name, state, line in zip(row, states, lines, strict=True):
        if name == "trusted":
            assert line == ""
            continue
        if state.has_fence:
            assert f"may have forgotten locks, and is not new (it stores '{FENCE}'): " in line
            assert "at once only with 'manage.py redlock_init --force'" in line
        elif name == "restarted":
            assert "has restarted: trusted " in line
        if state.ready_in:
            assert "trusted in " in line
        else:
            assert "no marker yet" in line or "new: run " in line or " s after a client" in line
        assert not (is_refused and INIT in line), line
    ran = run("redlock_init")
    assert ran.status == (2 if is_refused else 0)
    if is_refused:
        assert f"is not new: it stores '{FENCE}'. 'manage.py redlock_status' shows when" in ran.said
        return
    advised = [line for line in lines if line and INIT in line]
    assert advised or "trusted" in row
    assert "now" in ran.out or "trusted in " in ran.out
    if "trusted" not in row:
        assert status_lines(servers) == [""] * len(row)


def test_new_masters_beside_one_that_cannot_be_asked(
    masters: list[LocalMaster], settings: Settings
) -> None:
    settings.REDLOCK = redlock_of(masters[0].url, masters[1].url, "redis://127.0.0.1:1/0")
    for line in status_lines(masters[:2]):
        assert line.endswith(f"new: {INIT} once 127.0.0.1:1 can be asked")
    assert "127.0.0.1:1 refused the connection" in run("redlock_init").said


@pytest.mark.parametrize("answers", [("^D",), ("yes", "^D"), ("yes", "no")], ids="-".join)
def test_nothing_is_trusted_by_force_unless_all_of_it_is_confirmed(
    answers: tuple[str, ...],
    person: Callable[..., None],
    masters: list[LocalMaster],
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.REDLOCK = redlock_of(*(one.url for one in masters[:3]))
    forced = [f"--force=127.0.0.1:{one.port}" for one in masters[: len(answers)]]
    person(*answers)
    ran = run("redlock_init", *forced)
    assert (ran.status, ran.out) == (2, "")
    assert ran.said.endswith("Nothing was changed.")
    assert "by force" not in caplog.text
    assert not any(looking_at(one).exists("redlock:master") for one in masters[:3])
    person(*["yes"] * len(answers))
    assert run("redlock_init", *forced).out.count("trusted now") == len(answers)
    assert caplog.text.count("trusted by force") == len(answers)


def test_a_large_master_is_looked_through_for_a_part_of_the_time(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would count as one that did not answer, if nothing of the time were left."""
    settings.REDLOCK = redlock_of("redis://127.0.0.1:1/0")
    deployment = locks["default"].settings.store.deployment  # type: ignore[attr-defined]
    asked: list[Any] = []

    def ask(self: Probe, *commands: Any) -> Any:
        asked.extend(commands)
        return [(b"7", [])]

    monkeypatch.setattr(Probe, "ask", ask)
    monkeypatch.setattr(probe, "clock", lambda: float(len(asked)))
    assert Probe.stored_key(Probe.__new__(Probe), deployment, within=2.5) == ""
    assert [command[0] for command in asked] == ["SCAN"] * 3


def test_keys_of_another_prefix_are_no_locks(
    masters: list[LocalMaster], settings: Settings
) -> None:
    settings.REDLOCK = redlock_of(*(one.url for one in masters[:3]))
    with masters[0].client() as client:
        client.set("redlock:live:lock:order:1", "1")
    assert all(
        line.endswith(f"{INIT} (if it was emptied: wait)") for line in status_lines(masters[:3])
    )
    assert run("redlock_init").status == 0
