"""`manage.py list_locks`: data on stdout, messages on stderr, no terminal control characters."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import execute_from_command_line

from redlock_django import InvalidRedlock, lock, resume_lock
from redlock_django.backends.inspection.contract import Inspection
from redlock_django.engine.inspection import holders
from redlock_django.engine.inspection.queries import HeldPage, ListHeld, ReadLocks
from redlock_django.locking.services import locks
from redlock_django.operate.inspection import held_locks
from redlock_django.testing import memory_masters
from tests.operate.commands import add_waiters, memory, put, run
from tests.operate.conftest import LIST
from tests.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.test import Client
    from pytest_django import Settings

    from tests.operate.sites import Site

MANAGE = ROOT / "manage.py"
HOLDER = {"host": "web1", "pid": 7, "app": "shop", "at": 1790000000.5, "path": "/pay/"}
VALUE = f"{'a' * 32} {json.dumps(HOLDER)}".encode()


pytestmark = pytest.mark.usefixtures("in_memory")


def resources(**options: Any) -> list[str]:
    return [found.name for found in held_locks(**options).locks]


def test_the_json_document_has_all_fields(site: Site) -> None:
    with lock("order:1", ttl=30, holder={"path": "/pay/", "user": "7"}) as held:
        ran = run("list_locks", "--format", "json")
        fingerprint = held.fingerprint
    assert (ran.status, ran.said) == (0, "")
    document = ran.json
    [found] = document.pop("locks")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", document.pop("at"))
    names = site.servers
    assert document == {
        "using": "default",
        "masters": names,
        "silent": {},
        "quorum": True,
        "total": 1,
        "truncated": False,
    }
    assert 25 < found.pop("ttl") <= 30
    assert re.fullmatch(r"[-\d]{10}T[:\d]{8}\.\d{3}Z", found.pop("since"))
    holder = found.pop("holder")
    assert found == {
        "resource": "order:1",
        "slot": None,
        "limit": None,
        "state": "held",
        "fingerprint": fingerprint,
        "masters": names,
        "rivals": {},
        "waiters": 0,
        "minimum_hold_until": None,
        "handed_on": False,
    }
    assert (holder["path"], holder["user"], holder["pid"]) == ("/pay/", "7", os.getpid())


def test_the_table_has_a_row_for_each_lock(site: Site) -> None:
    site.put("order:1", ttl=30, holder=HOLDER)
    ran = run("list_locks")
    head, first = ran.out.splitlines()
    assert head.split() == [
        "RESOURCE", "STATE", f"{site.word.upper()}S", "TTL", "SINCE", "WAITERS", "LOCK", "HOLDER",
    ]  # fmt: skip
    assert re.fullmatch(
        r"order:1 +held +(3/3|1/1) +(30\.0|2\d\.\d) s +2026-09-21 \d\d:13:20 +0 +[0-9a-f]{8} +"
        r"web1:7 shop /pay/",
        first,
    )
    assert ran.said == ""


def test_a_lock_of_another_program() -> None:
    put("order:2", b"theirs", (0,), ms=10**15)
    line = run("list_locks").out.splitlines()[1]
    assert line.split()[:3] == ["order:2", "foreign", "1/3"]
    assert line.endswith("?")


def test_a_lock_with_a_minimum_hold_shows_its_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "EXPIRING", 20.0)  # seconds left; a busy machine needs some
    with lock("nightly", min_hold=30, ttl=40, holder={"path": "/"}):
        held = run("list_locks", "--format=json").json["locks"][0]
    kept = run("list_locks", "--format=json").json["locks"][0]  # released, and still held
    seconds = [datetime.fromisoformat(held[name]) for name in ("since", "minimum_hold_until")]
    assert (seconds[1] - seconds[0]).total_seconds() == pytest.approx(30.0, abs=0.002)
    assert kept["minimum_hold_until"] == held["minimum_hold_until"]
    until = held["minimum_hold_until"][11:19]
    assert f" held, minimum hold until {until} " in run("list_locks").out
    site.pass_time(15.0)
    assert f" expiring, minimum hold until {until} " in run("list_locks").out


def test_a_minimum_hold_that_is_over_is_not_shown(site: Site) -> None:
    site.put("order:1", holder={"at": 1e9, "min_hold": 5})
    assert "minimum hold" not in run("list_locks").out


def test_nothing_is_held(site: Site) -> None:
    assert run("list_locks") == (0, "", "No lock is held.\n")
    assert run("list_locks", "--format=json").json["locks"] == []


def test_the_command_searches_and_limits(site: Site) -> None:
    for number in range(5):
        site.put(f"order:{number}", ttl=50 - 5 * number)
    site.put("user:1", ttl=58)
    ran = run("list_locks", "--search", "user", "--format=json")
    assert [found["resource"] for found in ran.json["locks"]] == ["user:1"]
    ran = run("list_locks", "--limit", "2")
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == ["order:4", "order:3"]
    assert ran.said == "2 of 6 locks are listed. See --limit and --search.\n"


def test_a_cut_list_is_reported(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        site.put(f"order:{number}")
    monkeypatch.setattr(Inspection, "MAX_LISTED", 3)
    ran = run("list_locks", "--format=json")
    assert ran.status == 0
    assert "locks are held. Those that expire first were read" in ran.said
    assert (ran.json["total"], ran.json["truncated"]) == (3, True)


def test_names_without_a_lock_are_not_counted() -> None:
    put("order:1", b"theirs")
    put("order:2", b"gone")
    for master in memory().masters:
        del master.keyspace.strings[
            "redlock:lock:order:2"
        ]  # the index of the masters still lists it
    for search in ("", "order"):
        found = held_locks(search=search)
        assert (len(found.locks), found.count) == (1, 1), search
    ran = run("list_locks", "--format=json")
    assert (ran.json["total"], ran.said) == (1, "")


def test_a_search_finds_names_and_holders(site: Site) -> None:
    at = 1790000000
    held = {
        "a": {"host": "web2", "pid": 71, "app": "shop", "at": at + 2, "path": "/pay/"},
        "b": {"host": "web1", "pid": 7, "app": "shop", "at": at + 1, "user": "4"},
        "c": {},
        "d": {"host": "Web1", "pid": 4, "app": "celery", "at": at + 3},
    }
    for name, about in held.items():
        site.put(name, holder=about)
    found = {
        "web": ["a", "b", "d"],
        "WEB1": ["b", "d"],
        "7": ["b"],  # not a part of 71
        "4": ["b", "d"],
        "web1 shop": ["b"],
        "D web1": ["d"],
        "/pay": ["a"],
        "nobody": [],
    }
    for words, expected in found.items():
        assert sorted(resources(search=words)) == expected, words


def test_the_master_with_most_waiters_counts() -> None:
    put("order:1", VALUE)
    for index, waiting in enumerate((2, 3, 1)):
        add_waiters("order:1", waiting, master=index)
    assert run("list_locks", "--format=json").json["locks"][0]["waiters"] == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "read"),
    [({}, 20_001), ({"search": "order:11999"}, 20_001), ({"offset": 200, "limit": 50}, 10_050)],
)
def test_the_work_of_a_list_is_bounded(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], read: int
) -> None:
    """However many locks are held: one query for the names and eleven for their values."""
    for master in memory().masters:
        names = [b"order:%d" % number for number in range(12_000)]
        master.keyspace.sets["redlock:held"] = dict.fromkeys(
            names, master.keyspace.time() / 1000 + 60_000
        )
    replies: list[int] = []
    for kind in (ListHeld, ReadLocks):

        def counted(query: Any, reply: Any, read: Any = kind.read) -> Any:
            answer = read(query, reply)
            replies.append(len(answer.names if isinstance(answer, HeldPage) else answer))
            return answer

        monkeypatch.setattr(kind, "read", counted)
    held_locks(**options)
    assert len(replies) <= 3 * 12
    assert sum(replies) <= 3 * read


def test_silent_masters_and_missing_quorum() -> None:
    put("order:1", VALUE)
    memory().down[1] = True
    ran = run("list_locks")
    assert (ran.status, ran.said) == (0, "m2:6379 down\n")
    assert " 2/3 " in ran.out
    memory().down[2] = True
    ran = run("list_locks", "--format=json")
    assert ran.status == 3
    assert "Only 1 of 3 masters answered" in ran.said
    assert ran.json["quorum"] is False
    assert ran.json["silent"] == {"m2:6379": "down", "m3:6379": "down"}
    assert ran.json["locks"][0]["state"] == "unclear"


EVIL = {
    "host": "web\x1b[2J", "app": "a\nb", "path": "/\u202e<b>", "x\x9b": "\ud800", "at": 1e400,
}  # fmt: skip


@pytest.mark.parametrize("form", ["table", "json"])
def test_control_characters_are_escaped(site: Site, form: str) -> None:
    site.put("evil\r\x1b]0;\x07", holder=EVIL)
    site.put("evil\nnever held")
    ran = run("list_locks", "--format", form)
    assert ran.out.replace("\n", "").isprintable()
    assert len(ran.out.splitlines()) == 3 or form == "json"
    assert "nan" not in ran.out.lower()
    assert "Infinity" not in ran.out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--using", "nope"],
        ["--limit", "0"],
    ],
)
def test_wrong_arguments(arguments: list[str]) -> None:
    assert run("list_locks", *arguments).status == 2


@pytest.mark.parametrize("arguments", [["--limit", "x"], ["--format", "xml"]])
def test_wrong_arguments_at_the_command_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        execute_from_command_line([str(MANAGE), "list_locks", *arguments])
    assert capsys.readouterr().out == ""


def manage(*arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(MANAGE), *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "REDLOCK_MASTERS": "redis://127.0.0.1:9/0", "PYTHONUNBUFFERED": ""},
    )


def test_a_process_exits_with_the_status() -> None:
    done = manage("list_locks", "--format", "json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["quorum"] is False
    assert "127.0.0.1:9 refused the connection" in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_pipe_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = manage("list_locks", "--format=json", stdout=writer)
    os.close(writer)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_a_lock_that_was_handed_on_is_shown_as_not_yet_taken() -> None:
    with lock("order:1", ttl=30) as held:
        ticket = held.transfer()
    assert " held, handed on, not yet taken " in run("list_locks").out
    (found,) = run("list_locks", "--format=json").json["locks"]
    assert found["handed_on"] is True
    assert ticket not in run("list_locks", "--format=json").out
    with resume_lock(ticket):
        assert "handed on" not in run("list_locks").out


# RELEASE: which version of the code each holder runs.

OLD, NEW = "2.3.0", "2.4.1+f00"


@pytest.fixture
def old_and_new(in_memory: None, settings: Settings) -> Iterator[None]:
    """A lock of old code and one of new code."""
    alias = {"MASTERS": ["redis://10.0.0.1"]}
    settings.REDLOCK = {"default": {**alias, "RELEASE": NEW}, "old": {**alias, "RELEASE": OLD}}
    with memory_masters(), lock("order:1", using="old"), lock("order:2"):
        yield


@pytest.mark.usefixtures("old_and_new")
def test_operators_see_and_find_releases(admin_client: Client) -> None:
    for shown in (run("list_locks").out, admin_client.get(LIST).content.decode()):
        assert OLD in shown
        assert NEW in shown
    found = run("list_locks", "--format=json").json["locks"]
    releases = {one["resource"]: one["holder"]["release"] for one in found}
    assert releases == {"order:1": OLD, "order:2": NEW}
    assert [one.name for one in held_locks(search=OLD).locks] == ["order:1"]


def test_without_the_setting_holders_have_no_release() -> None:
    with lock("order:1"):
        (one,) = run("list_locks", "--format=json").json["locks"]
        assert "release" not in one["holder"]


@pytest.mark.parametrize(
    ("release", "message"), [(7, "RELEASE must be a string"), ("x" * 65, "at most 64 characters")]
)
def test_a_bad_release_is_named(settings: Settings, release: object, message: str) -> None:
    settings.REDLOCK = {"default": {"MASTERS": ["redis://10.0.0.1"], "RELEASE": release}}
    with pytest.raises(InvalidRedlock, match=message):
        locks["default"]
