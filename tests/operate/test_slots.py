"""Slots of a name with a limit in `list_locks`, `release_lock`, the admin, and inspection."""

from __future__ import annotations

import logging
import re
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.utils import timezone, translation

from redlock_django import lock
from redlock_django.admin import lock_rows
from redlock_django.backends.inspection.contract import Inspection
from redlock_django.locking.lock import Lock
from redlock_django.operate.inspection import held_locks, who_holds
from redlock_django.signals import lock_force_released
from redlock_django.wire.clock import clock
from tests.app.conftest import stop_clocks
from tests.operate import conftest as admin
from tests.operate.commands import Ran, add_waiters, memory, run
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.test import Client
    from pytest_django import Settings

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("in_memory")]


def holders(many: int, limit: int | None = 3, name: str = "export") -> dict[int, Lock]:
    """Return so many locks of other clients, by slot."""
    held = {}
    for number in range(many):
        one = lock(name, limit=limit, holder={"path": f"/{name}/{number}/"}).acquire()
        one.disown()
        held[one.slot] = one
    return held


def listed() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run("list_locks", "--format=json").json["locks"]
    return found


def slots(**options: Any) -> list[int | None]:
    return [one.slot for one in held_locks(**options).locks]


def test_a_slot_is_listed_with_its_name_its_number_and_how_many_are_held() -> None:
    stop_clocks()
    held = holders(2)
    lock("order:1", ttl=1).acquire().disown()
    heads, *others = run("list_locks").out.splitlines()
    assert heads.split()[:2] == ["RESOURCE", "STATE"]
    assert [re.split(" {2,}", row)[:2] for row in sorted(others)] == [
        *([f"export, slot {slot} (2/3 held)", "held"] for slot in sorted(held)),
        ["order:1", "expiring"],
    ]
    assert {row.split()[-1] for row in others[1:]} == {"/export/0/", "/export/1/"}


def test_the_document_has_slot_and_limit() -> None:
    held = holders(3)
    lock("order:1").acquire().disown()
    found = sorted(listed(), key=lambda one: (one["resource"], one["slot"]))
    assert [(one["resource"], one["slot"], one["limit"]) for one in found] == [
        ("export", 0, 3),
        ("export", 1, 3),
        ("export", 2, 3),
        ("order:1", None, None),
    ]
    assert [one["fingerprint"] for one in found[:3]] == [held[n].fingerprint for n in range(3)]


def test_slots_on_other_pages_are_counted() -> None:
    holders(3)
    assert " (3/3 held) " in run("list_locks", "--limit=1").out
    found = held_locks(search="/export/1/")
    assert (len(found.locks), str(found.slots["export"])) == (1, "3/3")


def test_the_waiters_of_a_name_are_counted_once() -> None:
    holders(3)
    add_waiters("export", 4)
    assert [one["waiters"] for one in listed()] == [4, 0, 0]
    assert [one.waiters for one in who_holds("export[1]").locks] == [4]
    assert sum(one.waiters for one in who_holds("export", slots=True).locks) == 4


def test_too_many_slots_to_read_have_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inspection, "MAX_LISTED", 5)
    holders(1, limit=3, name="a")
    holders(1, limit=3, name="b")
    found = held_locks()
    assert [one.name for one in found.locks] == ["a", "b"]
    assert {name: str(held) for name, held in found.slots.items()} == {"a": "1/3"}


def test_holders_with_different_limits_are_reported() -> None:
    holders(1, limit=3)
    assert held_locks().slots["export"].limits == (3,)
    holders(2, limit=5)
    assert "export have different limits: 3, 5" in run("list_locks").said
    assert held_locks().slots["export"].limits == (3, 5)


def test_a_lock_and_a_permit_of_one_name_are_reported() -> None:
    lock("export").acquire().disown()
    holders(1, limit=2)
    assert "different limits: 1, 2 (1: a lock)" in run("list_locks").said


# release_lock


def release(held: Lock, *arguments: str) -> Ran:
    return run("release_lock", "export", "--noinput", "--holder", held.fingerprint, *arguments)


@pytest.fixture
def confirming(person: Callable[..., None]) -> None:
    """A user at a terminal who confirms."""
    person("yes")


def test_a_release_asks_which_of_several_slots(caplog: pytest.LogCaptureFixture) -> None:
    held = holders(2)
    memory().down[2] = True
    ran = run("release_lock", "export")
    assert (ran.status, ran.out) == (2, "")
    assert ran.said.startswith("m3:6379 down\n")
    assert "export has several holders: 2/3 slots are held." in ran.said
    for slot, one in held.items():
        assert f"slot {slot}: lock {one.fingerprint} of " in ran.said
    assert f"--slot {min(held)} (or another of them)" in ran.said
    assert all(one.locked for one in held.values())
    assert "by force" not in caplog.text


@pytest.mark.usefixtures("confirming")
@pytest.mark.parametrize("slot", [0, 1, 2])
@pytest.mark.parametrize("by", ["slot", "holder"])
def test_one_slot_is_released(slot: int, by: str) -> None:
    held = holders(3)
    fingerprint = held[slot].fingerprint
    if by == "slot":
        ran = run("release_lock", "export", "--slot", str(slot))
    else:
        ran = release(held[slot])
    assert ran.status == 0
    assert f"export, slot {slot}: lock {fingerprint} was released." in ran.said
    left = {one.slot for one in who_holds("export", slots=True).locks}
    assert left == {0, 1, 2} - {slot}


@pytest.mark.usefixtures("confirming")
def test_one_held_slot_needs_no_number() -> None:
    held = holders(3)
    for slot in (0, 2):
        held[slot].release()
    assert run("release_lock", "export").status == 0
    assert not who_holds("export", slots=True).locks


def test_the_fingerprint_of_a_holder_that_has_no_slot_releases_nothing() -> None:
    held = holders(3)
    assert run("release_lock", "export", "--noinput", "--holder", "0" * 8).status == 1
    assert release(held[2], "--slot=1").status == 1
    assert len(who_holds("export", slots=True).locks) == 3


def test_a_free_slot_is_not_held() -> None:
    held = holders(2)
    free = ({0, 1, 2} - held.keys()).pop()
    ran = run("release_lock", "export", "--slot", str(free))
    assert ran.status == 1
    assert "is not held" in ran.said
    assert len(who_holds("export", slots=True).locks) == 2


@pytest.mark.parametrize("value", ["-1", "1000"])
def test_a_slot_that_no_name_has_is_refused(value: str) -> None:
    ran = run("release_lock", "export", f"--slot={value}")
    assert (ran.status, "--slot must be a number from 0 to 999" in ran.said) == (2, True)


def test_a_release_names_the_name_and_the_slot(caplog: pytest.LogCaptureFixture) -> None:
    held = holders(3)
    seen = []

    def receive(**arguments: Any) -> None:
        seen.append(arguments)

    lock_force_released.connect(receive)
    with caplog.at_level(logging.WARNING, "redlock_django"):
        for slot in (0, 2):
            release(held[slot])
    assert [(one["resource"], one["freed"].slot) for one in seen] == [("export", 0), ("export", 2)]
    texts = [record.getMessage() for record in caplog.records]
    assert [text.split(": ")[0] for text in texts] == [
        "redlock export, slot 0",
        "redlock export, slot 2",
    ]
    assert {record.__dict__["resource"] for record in caplog.records} == {"export"}
    assert held[1].locked


def test_the_next_waiter_gets_the_slot() -> None:
    held = holders(2, limit=2)
    got = []

    def wait_for_it() -> None:
        with lock("export", limit=2, wait=60) as mine:
            got.append((mine.slot, clock()))

    waiter = threading.Thread(target=wait_for_it)
    waiter.start()
    until(lambda: sum(one["waiters"] for one in listed()), "a waiter")
    released = clock()
    release(held[1])
    waiter.join()
    [(taken, at)] = got
    assert taken == 1
    assert at - released < 5, "the waiter was not called: it waited for the end of a TTL"


def test_the_state_of_the_masters_counts_slots_as_locks() -> None:
    holders(3)
    ran = run("redlock_status", "--format=json")
    assert ran.json["quorum"] is True
    assert {master["held"] for master in ran.json["masters"]} == {3}


def test_a_name_that_is_held_in_slots_is_similar_to_a_misspelt_one() -> None:
    holders(3)
    ran = run("release_lock", "exports")
    assert ran.status == 1
    assert "exports is not held. Similar resources that are held: export" in ran.said
    assert "[" not in ran.said


# The admin.


def id_of(held: Lock) -> str:
    slot = f"[{held.slot}]" if held.slot else ""
    return f"{held.fingerprint}:export{slot}"


def test_the_list_shows_each_slot_and_how_many_are_held(viewer: Client) -> None:
    held = holders(2)
    lock("order:1").acquire().disown()
    text = admin.text_of(viewer.get(admin.LIST))
    first, second = sorted(held)
    assert f"export slot {first} · 2/3 held" in text
    assert f"export slot {second} · 2/3 held" in text
    assert text.count("slot ") == 2
    assert "[" not in text.split("order:1")[0].split("export")[1]


def test_holders_with_different_limits_are_shown(viewer: Client) -> None:
    holders(1, limit=3)
    assert "different limits" not in admin.text_of(viewer.get(admin.LIST))
    holders(1, limit=5)
    text = admin.text_of(viewer.get(admin.LIST))
    assert text.count("2/5 held different limits: 3, 5") == 2
    assert "different limits: the holders of a name state different limits" in text
    assert "write the same limit in both" in text


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_the_slot_that_was_chosen_is_released(
    slot: int, operator: Client, caplog: pytest.LogCaptureFixture
) -> None:
    held = holders(3)
    question = operator.post(admin.LIST, {"lock": id_of(held[slot])})
    assert f"export slot {slot} {held[slot].fingerprint}" in admin.text_of(question)
    assert f'aria-label="Release export, slot {slot} ' in question.content.decode()
    (message,) = admin.release(operator, id_of(held[slot]))
    assert message.startswith(f"Released: export, slot {slot}.")
    left = {one.slot for one in who_holds("export", slots=True).locks}
    assert left == {0, 1, 2} - {slot}
    assert LogEntry.objects.get().object_repr == f"export, slot {slot}"
    assert f"redlock export, slot {slot}: lock {held[slot].fingerprint} of " in caplog.text


def test_pages_are_english_where_the_admin_has_another_language(
    viewer: Client, settings: Settings
) -> None:
    settings.LANGUAGE_CODE = "de"
    (one,) = holders(1).values()
    text = admin.text_of(viewer.get(admin.LIST))
    assert "Abmelden" in text  # Django's own words
    assert f"slot {one.slot} · 1/3 held" in text
    with translation.override("de"):
        assert lock_rows.age(timezone.now() - timedelta(hours=3)) == "3\xa0hours"
