"""Slots of a name with a limit in `list_locks`, `release_lock` and the results of inspection."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django import lock
from redlock_django.backends.inspection.contract import Inspection
from redlock_django.exceptions import LockLost
from redlock_django.locking.lock import Lock
from redlock_django.locking.services import locks
from redlock_django.operate.inspection import held_locks, who_holds
from redlock_django.signals import lock_force_released
from redlock_django.wire.clock import clock
from tests.operate.commands import THREE_IN_MEMORY, run
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def in_memory(settings: Settings) -> None:
    """Three masters in memory."""
    settings.REDLOCK = {"default": {**THREE_IN_MEMORY, "RESTART_DELAY": 0}}


def holders(many: int, limit: int | None = 3, name: str = "export") -> dict[int, Lock]:
    """Return so many locks of other clients, by slot."""
    held = {}
    for number in range(many):
        one = lock(name, limit=limit, holder={"path": f"/{name}/{number}/"}).acquire()
        one.disown()
        held[one.slot] = one
    return held


def add_waiters(many: int, name: str = "export") -> None:
    backend: Any = locks["default"].backend
    queue = {f"process {number}".encode(): float(number) for number in range(many)}
    backend.masters[0].keyspace.sets[backend.deployment.queue(name)] = queue


def listed(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run("list_locks", "--format=json", *arguments).json["locks"]
    return found


def rows(*arguments: str) -> list[list[str]]:
    return [line.split() for line in run("list_locks", *arguments).out.splitlines()]


def test_a_slot_is_listed_with_its_name_its_number_and_how_many_are_held() -> None:
    held = holders(2)
    lock("order:1").acquire().disown()
    heads, *others = rows("--order=resource")
    assert heads[:3] == ["RESOURCE", "SLOT", "STATE"]
    first, second = sorted(held)
    assert [row[:5] for row in others[:2]] == [
        ["export", str(first), "(2/3", "held)", "held"],
        ["export", str(second), "(2/3", "held)", "held"],
    ]
    assert others[2][:2] == ["order:1", "held"]
    assert {row[-1] for row in others[:2]} == {"/export/0/", "/export/1/"}


def test_without_slots_there_is_no_column_for_them() -> None:
    lock("order:1").acquire().disown()
    assert rows()[0][:2] == ["RESOURCE", "STATE"]


def test_the_document_has_slot_and_limit() -> None:
    held = holders(3)
    lock("order:1").acquire().disown()
    found = listed("--order=resource")
    assert [(one["resource"], one["slot"], one["limit"]) for one in found] == [
        ("export", 0, 3),
        ("export", 1, 3),
        ("export", 2, 3),
        ("order:1", None, None),
    ]
    assert [one["fingerprint"] for one in found[:3]] == [held[n].fingerprint for n in range(3)]


def test_slots_of_a_name_are_next_to_each_other_by_name() -> None:
    lock("export2").acquire().disown()
    holders(11, limit=11)
    found = listed("--order=resource")
    assert [one["slot"] for one in found] == [*range(11), None]
    found = listed("--order=resource", "--reverse")
    assert [one["slot"] for one in found] == [None, *reversed(range(11))]


def test_a_search_for_the_name_finds_all_slots() -> None:
    holders(3)
    lock("order:1").acquire().disown()
    for arguments in (["--search=export"], ["--prefix=export"], ["--search=xpor", "--scan"]):
        assert sorted(one["slot"] for one in listed(*arguments)) == [0, 1, 2]


def test_slots_on_other_pages_are_counted() -> None:
    holders(3)
    for arguments in (["--limit=1"], ["--holder=/export/1/"]):
        _, row = rows(*arguments)
        assert row[2:4] == ["(3/3", "held)"]


def test_the_waiters_of_a_name_are_counted_once() -> None:
    holders(3)
    add_waiters(4)
    assert [one["waiters"] for one in listed()] == [4, 0, 0]
    assert [one.waiters for one in who_holds("export[1]").locks] == [4]
    assert sum(one.waiters for one in who_holds("export", slots=True).locks) == 4


def test_too_many_slots_to_read_have_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inspection, "MAX_LISTED", 5)
    holders(1, limit=3, name="a")
    holders(1, limit=3, name="b")
    _, first, second = rows("--order=resource")
    assert (first[0], *first[2:4]) == ("a", "(1/3", "held)")
    assert (second[0], second[2]) == ("b", "held")


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


def test_a_release_asks_which_of_several_slots(caplog: pytest.LogCaptureFixture) -> None:
    held = holders(2)
    ran = run("release_lock", "export", "--noinput", "--force")
    assert (ran.status, ran.out) == (2, "")
    assert "export has several holders: 2/3 slots are held." in ran.said
    for slot, one in held.items():
        assert f"slot {slot}: lock {one.fingerprint} of " in ran.said
    assert f"--slot {min(held)} (or another of them), or --all-slots" in ran.said
    assert all(one.locked for one in held.values())
    assert "by force" not in caplog.text


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_one_slot_is_released(slot: int) -> None:
    held = holders(3)
    ran = run(
        "release_lock", "export", "--slot", str(slot), "--noinput", "--force", "--format=json"
    )
    assert ran.status == 0
    [result] = ran.json["results"]
    assert (result["resource"], result["slot"], result["limit"]) == ("export", slot, 3)
    assert result["fingerprint"] == held[slot].fingerprint
    left = {one.slot for one in who_holds("export", slots=True).locks}
    assert left == {0, 1, 2} - {slot}


def test_all_slots_are_released() -> None:
    holders(3)
    ran = run("release_lock", "export", "--all-slots", "--noinput", "--force")
    assert ran.status == 0
    assert [line.split("  ")[0] for line in ran.out.splitlines()[1::3]] == [
        "export, slot 0",
        "export, slot 1",
        "export, slot 2",
    ]
    assert not who_holds("export", slots=True).locks


def test_one_held_slot_needs_no_number() -> None:
    held = holders(3)
    for slot in (0, 2):
        held[slot].release()
    assert run("release_lock", "export", "--noinput", "--force").status == 0
    assert not who_holds("export", slots=True).locks


def test_the_fingerprint_of_a_holder_names_its_slot() -> None:
    held = holders(3)
    ran = run("release_lock", "export", "--noinput", "--holder", held[2].fingerprint)
    assert ran.status == 0
    assert {one.slot for one in who_holds("export", slots=True).locks} == {0, 1}
    assert run("release_lock", "export", "--noinput", "--holder", "0" * 8).status == 1


def test_a_free_slot_is_not_held() -> None:
    held = holders(2)
    free = ({0, 1, 2} - held.keys()).pop()
    ran = run("release_lock", "export", "--slot", str(free), "--noinput", "--force")
    assert ran.status == 1
    assert "is not held" in ran.said
    assert len(who_holds("export", slots=True).locks) == 2


@pytest.mark.parametrize("value", ["-1", "1000", "x", "1.0"])
def test_a_slot_is_a_number(value: str) -> None:
    ran = run("release_lock", "export", f"--slot={value}")
    assert "slots from 0 to 999" in ran.said


def test_slot_and_all_slots_exclude_each_other() -> None:
    assert "not allowed with" in run("release_lock", "export", "--slot=1", "--all-slots").said


def test_a_release_names_the_name_and_the_slot(caplog: pytest.LogCaptureFixture) -> None:
    held = holders(3)
    seen = []

    def receive(**arguments: Any) -> None:
        seen.append(arguments)

    lock_force_released.connect(receive)
    with caplog.at_level(logging.WARNING, "redlock_django"):
        for slot in (0, 2):
            run("release_lock", "export", f"--slot={slot}", "--noinput", "--force")
    assert [(one["resource"], one["freed"].slot) for one in seen] == [("export", 0), ("export", 2)]
    texts = [record.getMessage() for record in caplog.records]
    assert [text.split(": ")[0] for text in texts] == [
        "redlock export, slot 0",
        "redlock export, slot 2",
    ]
    assert {record.__dict__["resource"] for record in caplog.records} == {"export"}
    assert held[1].locked


def test_the_holder_of_a_released_slot_loses_it() -> None:
    held = holders(2)
    slot = max(held)
    run("release_lock", "export", f"--slot={slot}", "--noinput", "--force")
    with pytest.raises(LockLost):
        held[slot].verify()
    held[min(held)].verify()


@pytest.mark.parametrize("slot", [0, 1])
def test_the_next_waiter_gets_the_slot(slot: int) -> None:
    holders(2, limit=2)
    got = []

    def wait_for_it() -> None:
        with lock("export", limit=2, wait=60) as held:
            got.append((held.slot, clock()))

    waiter = threading.Thread(target=wait_for_it)
    waiter.start()
    until(lambda: sum(one["waiters"] for one in listed()), "a waiter")
    released = clock()
    run("release_lock", "export", f"--slot={slot}", "--noinput", "--force")
    waiter.join()
    [(taken, at)] = got
    assert taken == slot
    assert at - released < 5, "the waiter was not called: it waited for the end of a TTL"


def test_the_state_of_the_masters_counts_slots_as_locks() -> None:
    holders(3)
    ran = run("redlock_status", "--format=json")
    assert ran.json["quorum"] is True
    assert {master["held"] for master in ran.json["masters"]} == {3}


def test_a_name_that_is_held_in_slots_is_similar_to_a_misspelt_one() -> None:
    holders(3)
    ran = run("release_lock", "exports", "--noinput", "--force")
    assert ran.status == 1
    assert "exports is not held. Similar resources that are held: export" in ran.said
    assert "[" not in ran.said


def test_a_dry_run_shows_all_slots() -> None:
    held = holders(2)
    ran = run("release_lock", "export", "--all-slots", "--dry-run", "--format=json")
    assert ran.status == 0
    found = [(one["slot"], one["outcome"]) for one in ran.json["results"]]
    assert found == [(slot, "would release") for slot in sorted(held)]
    assert all(one.locked for one in held.values())
