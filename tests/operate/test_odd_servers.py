"""Servers in odd states, and programs that are no servers of this kind: what the commands report.

Each command names the cause, never only a word of the server's answer, and shows no secret.
"""

from __future__ import annotations

import re
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import hiredis
import pytest

from redlock_django import QuorumUnreachable, lock
from redlock_django.locking.services import locks
from redlock_django.testing.masters import local_masters
from redlock_django.wire.servers.error_replies import code_of, explain
from redlock_django.wire.servers.info import faults
from tests.app.checking import found
from tests.operate.commands import Ran, run
from tests.timeouts import redlock_of

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster

UNKNOWN = "is it renamed there (rename-command), or behind a proxy?"

EXPLAINED = [
    ("OOM command not allowed when used memory > 'maxmemory'.", "answered OOM (its memory is full"),
    ("ERR Error running script (call to f_1): @user_script:1: -OOM no", "answered OOM (its memory"),
    ("NOREPLICAS Not enough good replicas to write.", "min-replicas-to-write"),
    ("MISCONF Errors writing to the AOF file", "answered MISCONF (it cannot save its data"),
    ("BUSY Redis is busy running a script.", "a script of another client keeps it busy"),
    ("LOADING Redis is loading the dataset in memory", "it is still loading its data"),
    ("MASTERDOWN Link with MASTER is down", "it is a replica, and has lost its master"),
    ("READONLY You can't write against a read only replica.", "it is a replica"),
    ("CROSSSLOT Keys in request don't hash to the same slot", "it is a cluster node"),
    ("CLUSTERDOWN Hash slot not served", "it is a cluster node"),
    ("ERR SELECT is not allowed in cluster mode", "it is a cluster node"),
    ("ERR DB index is out of range", "has no database with this number"),
    ("DENIED Redis is running in protected mode", "its protected-mode refuses other machines"),
    ("WRONGTYPE Operation against a key", "another program writes to keys that begin with KEY_PR"),
    ("NOAUTH Authentication required.", "needs a password: set one in OPTIONS"),
    ("WRONGPASS invalid username-password pair", "refused the password"),
    ("ERR AUTH <password> called without any password configured", "has no password, but OPTIONS"),
    ("ERR unknown command 'EVALSHA', with args beginning with: 'canary'", "the command EVALSHA: "),
    ("ERR unknown command `canary`, with args", f"does not know a command: {UNKNOWN}"),
    ("ERR Unknown Redis command called from script script: canary", "does not know a command: "),
    ("NOPERM User app has no permissions to run the 'set' command", "its ACL forbids 'set' (docs/"),
    ("canary of an unknown kind", "answered ERR (see its log)"),
    ("STRANGE canary", "answered STRANGE"),
]


@pytest.mark.parametrize(("reply", "meaning"), EXPLAINED)
def test_an_error_reply_is_explained(reply: str, meaning: str) -> None:
    said = explain(reply)
    assert meaning in said
    assert "canary" not in said
    assert said.isprintable()


def test_the_code_of_an_error_is_a_code() -> None:
    assert code_of("NOSCRIPT No matching script.") == "NOSCRIPT"
    assert code_of("ERR Error running script: @user_script:1: -SECRET canary") == "ERR"
    assert code_of("") == "ERR"


def test_a_sentinel_is_no_master() -> None:
    info = {"redis_version": "7.0.15", "run_id": "1f", "redis_mode": "sentinel"}
    assert [str(one) for one in faults(info)] == [
        "is a Sentinel: name it in SENTINELS, and its service in MASTERS, with PROFILE 'failover'"
    ]


def commands() -> dict[str, Ran]:
    """Run every command for operators and return what each said."""
    released = run("release_lock", "order:1", "--noinput", "--holder", "0" * 8)
    # Why a server has not answered is in its table of results, which is on stdout.
    results = f"{' '.join(released.out.split())}\n{released.said}"
    return {
        "init": run("redlock_init"),
        "status": run("redlock_status"),
        "list": run("list_locks"),
        "release": released._replace(said=results),
    }


def full(client: Any) -> None:
    client.config_set("maxmemory", "1")


def without_replicas(client: Any) -> None:
    client.config_set("min-replicas-to-write", "1")


def with_another_marker(client: Any) -> None:
    client.delete("redlock:master")
    client.rpush("redlock:master", "canary")


WRITES = [
    (full, "answered OOM (its memory is full: raise its maxmemory"),
    (without_replicas, "answered NOREPLICAS (too few replicas follow it"),
    (with_another_marker, "answered WRONGTYPE (a key has another type"),
]


@pytest.mark.live
@pytest.mark.parametrize(("break_it", "cause"), WRITES, ids=[fault.__name__ for fault, _ in WRITES])
def test_a_server_that_refuses_commands_of_locks_is_not_counted(
    break_it: Callable[[Any], None], cause: str, masters: list[LocalMaster], settings: Settings
) -> None:
    """The commands answer as `lock()` does: no lock is acquired there."""
    settings.REDLOCK = redlock_of(masters[0].url)
    with masters[0].client() as client:
        break_it(client)
        try:
            said = commands()
            with pytest.raises(QuorumUnreachable) as refused:
                lock("order:1").acquire()
            checked = found(deploy=True, tag="redlock_masters", databases=["default"])
        finally:
            client.config_set("maxmemory", "0")
            client.config_set("min-replicas-to-write", "0")
    assert cause in str(refused.value)
    assert (said["init"].status, said["status"].status) == (2, 3)
    assert "Nothing was changed" in said["init"].said
    for one in (said["init"], said["status"]):
        assert cause in one.said
    assert cause in checked["E025"]
    assert "E028" in checked
    assert "canary" not in f"{said} {checked} {refused.value}"


@pytest.mark.live
def test_a_master_that_is_declared_before_one_that_refuses_is_named(
    masters: list[LocalMaster], settings: Settings
) -> None:
    settings.REDLOCK = redlock_of(*(master.url for master in masters[:2]))
    with masters[1].client() as client:
        full(client)
        try:
            refused = run("redlock_init")
        finally:
            client.config_set("maxmemory", "0")
    assert refused.status == 2
    assert f"127.0.0.1:{masters[0].port}: trusted now" in refused.out
    assert f"127.0.0.1:{masters[1].port} answered OOM" in refused.said
    assert "it goes on with the masters that are not declared yet" in refused.said
    assert "Nothing was changed" not in refused.said
    assert run("redlock_init").out == f"127.0.0.1:{masters[1].port}: trusted now\n"


@pytest.mark.live
def test_renamed_commands_are_named(settings: Settings) -> None:
    renamed = [word for name in ("EVALSHA", "CONFIG", "HELLO") for word in (name, f"x{name}")]
    pairs = [("--rename-command", *renamed[n : n + 2]) for n in range(0, len(renamed), 2)]
    with local_masters(1, args=[word for pair in pairs for word in pair]) as [master]:
        settings.REDLOCK = redlock_of(master.url)
        said = commands()
        with pytest.raises(QuorumUnreachable, match="does not know the command EVALSHA"):
            lock("order:1").acquire()
        locks.close()
    assert said["init"].status == 0  # CONFIG and HELLO are not needed
    assert f"does not know the command EVALSHA: {UNKNOWN}" in said["status"].said
    assert said["status"].status == 3


@pytest.mark.live
def test_a_user_that_may_not_publish_cannot_wake_waiters(
    masters: list[LocalMaster], settings: Settings
) -> None:
    with masters[0].client() as client:
        for channels in (("&*", "-publish"), ("resetchannels",)):
            rights = ("reset", "on", ">canary", "~*", "+@all", *channels)
            client.execute_command("ACL", "SETUSER", "poor", *rights)
            url = masters[0].url.replace("redis://", "redis://poor:canary@")
            settings.REDLOCK = redlock_of(url)
            ran = run("redlock_status")
            assert ran.status == 1
            assert "its ACL forbids publish: it cannot wake waiters" in ran.said
            locks.close()
        client.execute_command("ACL", "DELUSER", "poor")


class Program(socketserver.ThreadingTCPServer):
    """A program that sends the same answer to everything, or closes the connection."""

    daemon_threads = True
    answer: bytes | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(60)
        with suppress(OSError):  # the client has closed the connection
            self.talk(request)

    def talk(self, request: Any) -> None:
        while request.recv(65536) and self.answer is not None:
            request.sendall(self.answer)


class Proxy(Program):
    """A program that answers INFO as a server does, and the same string to all other commands."""

    def talk(self, request: Any) -> None:
        commands = hiredis.Reader()
        while data := request.recv(65536):
            commands.feed(data)
            while (command := commands.gets()) is not False:
                text = INFO if command[0] == b"INFO" else b"canary" * 10
                request.sendall(b"$%d\r\n%s\r\n" % (len(text), text))


INFO = b"redis_version:7.2.4\r\nrun_id:1f\r\nrole:master\r\n"


@contextmanager
def program(answer: bytes | type[Program] | None) -> Iterator[str]:
    """Start a program that answers in this way, and return its address."""
    kind = answer if isinstance(answer, type) else Program
    with kind(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        server.answer = answer if isinstance(answer, bytes) else None
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


NOT_REDIS = "does not answer as Redis does: check host and port, or the proxy before it"


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", NOT_REDIS),
        (b"+OK\r\n", NOT_REDIS),
        (b":1\r\n", NOT_REDIS),
        (b"$-1\r\n", NOT_REDIS),
        (b"*1\r\n$6\r\ncanary\r\n", NOT_REDIS),
        (b"*2\r\n:0\r\n:1\r\n", NOT_REDIS),
        (None, "closed the connection"),
        (b"-BUSY Redis is busy running a script.\r\n", "a script of another client keeps it busy"),
        (b"-LOADING Redis is loading the dataset in memory\r\n", "it is still loading its data"),
        (b"-DENIED Redis is running in protected mode canary\r\n", "its protected-mode refuses"),
        (Proxy, NOT_REDIS),  # a string that no script has written is not a marker
    ],
    ids=[
        *("http", "ok", "number", "nil", "list", "numbers", "closes", "busy", "loading", "denied"),
        "proxy",
    ],
)
def test_another_program_is_recognised_by_its_answers(
    answer: bytes | type[Program] | None, cause: str, settings: Settings
) -> None:
    with program(answer) as address:
        settings.REDLOCK = redlock_of(f"redis://{address}/0")
        said = commands()
        with pytest.raises(QuorumUnreachable) as refused:
            lock("order:1").acquire()
        locks.close()
    assert {name: ran.status for name, ran in said.items()} == {
        "init": 2, "status": 3, "list": 3, "release": 3,
    }  # fmt: skip
    for ran in said.values():
        assert re.search(rf"{address} (answered [A-Z]+ .)?{re.escape(cause)}\b", ran.said)
    assert re.search(rf"{re.escape(cause)}\b", str(refused.value))
    assert "canary" not in f"{said} {refused.value}"


def test_a_file_for_tls_that_is_missing_is_named(settings: Settings) -> None:
    options = {"ssl_ca_certs": "/nowhere/ca.pem"}
    settings.REDLOCK = redlock_of("rediss://127.0.0.1:1/0", OPTIONS=options)
    for ran in commands().values():
        assert "ssl_ca_certs names '/nowhere/ca.pem', which cannot be read" in ran.said


@pytest.mark.parametrize("answer", [b"+OK\r\n", b":1\r\n", b"*1\r\n$1\r\na\r\n"])
def test_a_program_in_the_place_of_a_sentinel_is_named(settings: Settings, answer: bytes) -> None:
    with program(answer) as address:
        sentinels = [f"redis://{address}"]
        settings.REDLOCK = redlock_of("redis://locks/0", SENTINELS=sentinels, PROFILE="failover")
        with pytest.raises(QuorumUnreachable, match=rf"Sentinel {address} is not a Sentinel"):
            lock("order:1").acquire()
        locks.close()
