"""`manage.py release_lock`: it asks, releases the lock that was shown, and sets its exit status."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from getpass import getuser
from typing import TYPE_CHECKING

import pytest
from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

from redlock_django import lock
from redlock_django.engine.validity import fingerprint_of
from redlock_django.operate.inspection import who_holds
from tests.losses import ends_lost
from tests.operate.commands import memory, put, run

if TYPE_CHECKING:
    from tests.operate.sites import Site

pytestmark = pytest.mark.django_db
R = "order:1"


def is_held(resource: str = R) -> bool:
    return memory().masters[0].keyspace.get(f"redlock:lock:{resource}") is not None


def test_lock_is_shown_and_confirmed(site: Site, person: Callable[..., None]) -> None:
    held = lock(R, holder={"path": "/pay/"}).acquire()
    person("yes")
    ran = run("release_lock", R)
    assert ran.status == 0
    assert not site.holds(R)
    assert f"lock {held.fingerprint} (held), since 20" in ran.said
    many = len(site.servers)
    assert f"on {many} of {many} {site.word}s" in ran.said
    assert "/pay/" in ran.said
    assert "not stopped" in ran.said
    assert f"{R}: lock {held.fingerprint} was released." in ran.said
    rows = [line.split() for line in ran.out.splitlines()]
    assert rows[0] == [site.word.upper(), "RESULT"]
    assert rows[1:] == [[server, "released"] for server in site.servers]


@pytest.mark.parametrize("answer", ["no", "", "y", "^D"])
def test_only_yes_confirms(
    site: Site, person: Callable[..., None], answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    with lock(R):
        person(answer)
        ran = run("release_lock", R)
        assert (ran.status, ran.out) == (1, "")
        assert f"{R} was not released." in ran.said
        assert site.holds(R)
    assert "by force" not in caplog.text


def test_a_lock_acquired_during_the_question_is_kept(
    site: Site, person: Callable[..., None]
) -> None:
    first = lock(R).acquire()

    def change_hands() -> None:
        first.release()
        site.put(R, token="b", holder={})

    person("yes", meanwhile=change_hands)
    ran = run("release_lock", R)
    assert ran.status == 1
    (now,) = who_holds(R).locks
    assert f"{R} was not released: it is now held as lock {now.fingerprint}." in ran.said
    assert site.holds(R)


def test_a_lock_acquired_after_the_query_is_kept(
    site: Site, person: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_and_miss(*keys: str, using: str, slots: bool) -> object:
        page = who_holds(*keys, using=using, slots=slots)
        site.put(R, token="b", holder={})
        return page

    monkeypatch.setattr("redlock_django.management.commands.release_lock.who_holds", look_and_miss)
    person("yes")
    assert run("release_lock", R).status == 1
    assert site.holds(R)


def test_without_a_terminal_the_lock_must_be_named(site: Site) -> None:
    with ends_lost(), lock(R) as held:
        for arguments in ([], ["--noinput"], ["--holder", held.fingerprint]):
            ran = run("release_lock", R, *arguments)
            assert (ran.status, ran.out) == (2, "")
            assert "--noinput" in ran.said
        assert site.holds(R)
        assert run("release_lock", R, "--no-input", "--holder", "0" * 8).status == 1
        assert site.holds(R)
        assert run("release_lock", R, "--noinput", "--holder", held.fingerprint).status == 0
        assert not site.holds(R)


@pytest.mark.usefixtures("in_memory")
def test_one_holder_of_a_split_vote_can_be_named() -> None:
    put(R, b"a" * 32 + b" {}", (0, 1))
    put(R, b"b" * 32 + b" {}", (2,))
    ran = run("release_lock", R, "--noinput", "--holder", fingerprint_of(b"b" * 32))
    assert ran.status == 0
    held = [master.keyspace.get(f"redlock:lock:{R}") is not None for master in memory().masters]
    assert held == [True, True, False]


def test_a_key_that_is_not_held_needs_no_terminal(site: Site) -> None:
    """There is nothing to confirm: the status is that of a key that is not held."""
    ran = run("release_lock", "nope")
    assert (ran.status, "nope is not held" in ran.said) == (1, True)
    assert "--noinput" not in ran.said


def test_a_key_that_is_not_held_lists_similar_keys(site: Site) -> None:
    with lock("order:17"):
        ran = run("release_lock", "ordr:17")
    assert ran.status == 1
    assert "ordr:17 is not held. Similar resources that are held: order:17" in ran.said


@pytest.mark.usefixtures("in_memory")
def test_a_release_without_a_quorum_has_status_3(caplog: pytest.LogCaptureFixture) -> None:
    with lock(R) as held:
        fingerprint = held.fingerprint
        memory().down[:2] = [True, True]
        ran = run("release_lock", R, "--noinput", "--holder", fingerprint)
        assert ran.status == 3
        assert [line.split() for line in ran.out.splitlines()[1:]] == [
            ["m1:6379", "down"],
            ["m2:6379", "down"],
            ["m3:6379", "released"],
        ]
        assert f"{ran.out}{ran.said}".count("m1:6379") == 1
        assert "may still be held" in ran.said
        assert re.search(r"was released by force by \S+: no quorum \(", caplog.text)
        ran = run("release_lock", "order:2", "--noinput", "--holder", fingerprint)
        assert (ran.status, "order:2 may still be held" in ran.said) == (3, True)


@pytest.mark.parametrize("key", ["order 1", "order:*", "a%zz", "<b>", ""])
def test_an_invalid_key_is_refused(site: Site, key: str) -> None:
    with lock(R):
        ran = run("release_lock", key, "--noinput", "--holder", "0" * 8)
        assert ran.status == 2
        assert "resource(" in ran.said or not key
        assert site.holds(R)


def test_the_operator_is_logged(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "web\n1")
    with ends_lost(), lock(R) as held, caplog.at_level(logging.WARNING):
        fingerprint = held.fingerprint
        run("release_lock", R, "--noinput", "--holder", fingerprint)
    by = f"{getuser()}@web\\n1"
    [line] = [r.getMessage() for r in caplog.records if "by force" in r.getMessage()]
    assert f"lock {fingerprint} of " in line
    assert f"by force by {by}: released" in line
    assert "\n" not in line


def test_control_characters_of_a_holder_are_escaped(
    site: Site, person: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    site.put(R, holder={"path": "/\x1b[31m\nnever", "host": "\x9b2J"})
    person("yes")
    ran = run("release_lock", R)
    assert ran.status == 0
    for text in (*ran.said.splitlines(), *ran.out.splitlines(), *caplog.messages):
        assert text.isprintable()


def test_wrong_arguments(site: Site) -> None:
    assert run("release_lock", R, "--using", "nope").status == 2


@pytest.mark.usefixtures("in_memory")
def test_one_holder_of_a_split_vote_is_released(person: Callable[..., None]) -> None:
    put(R, b"a" * 32 + b" {}", (0, 1))
    put(R, b"b" * 32 + b" {}", (2,))
    person("yes")
    ran = run("release_lock", R)
    assert (ran.status, ran.said.count("is held by")) == (0, 1)
    assert not is_held()
    (left,) = who_holds(R).locks
    assert left.fingerprint == fingerprint_of(b"b" * 32)


@pytest.mark.usefixtures("in_memory")
def test_the_command_works_without_a_database(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise DatabaseError("no such file")

    monkeypatch.setattr(BaseDatabaseWrapper, "cursor", fail)
    with ends_lost(), lock(R) as held:
        assert run("release_lock", R, "--noinput", "--holder", held.fingerprint).status == 0
        assert not is_held()
    assert "by force" in caplog.text
