"""Slots of a name with a limit in the admin: the list, the page of one, their release."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.utils import timezone, translation

from redlock_django import lock
from redlock_django.admin import lock_rows
from redlock_django.locking.lock import Lock
from redlock_django.operate.inspection import who_holds
from tests.operate.commands import THREE_IN_MEMORY, memory
from tests.operate.conftest import LIST, release

if TYPE_CHECKING:
    from django.test import Client
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


def id_of(held: Lock) -> str:
    slot = f"[{held.slot}]" if held.slot else ""
    return f"{held.fingerprint}:export{slot}"


def text_of(answer: Any) -> str:
    """Return the text of a page, on one line."""
    assert answer.status_code == 200
    return " ".join(re.sub("<[^>]*>", " ", answer.content.decode()).split())


def test_the_list_shows_each_slot_and_how_many_are_held(viewer: Client) -> None:
    held = holders(2)
    lock("order:1").acquire().disown()
    text = text_of(viewer.get(LIST))
    first, second = sorted(held)
    assert f"export slot {first} · 2/3 held" in text
    assert f"export slot {second} · 2/3 held" in text
    assert text.count("slot ") == 2
    assert "[" not in text.split("order:1")[0].split("export")[1]


def test_a_search_finds_all_slots(viewer: Client) -> None:
    holders(3)
    lock("order:1").acquire().disown()
    text = text_of(viewer.get(LIST, {"q": "export"}))
    assert "3 locks match." in text
    assert [f"slot {slot} · 3/3 held" in text for slot in range(3)] == [True] * 3


def test_waiters_of_a_name_are_shown_once(viewer: Client) -> None:
    holders(3)
    queue = {f"process {number}".encode(): float(number) for number in range(4)}
    memory().masters[0].keyspace.sets["redlock:queue:export"] = queue
    assert text_of(viewer.get(LIST)).count("4 waiters") == 1


def test_holders_with_different_limits_are_shown(viewer: Client) -> None:
    holders(1, limit=3)
    assert "different limits" not in text_of(viewer.get(LIST))
    holders(1, limit=5)
    text = text_of(viewer.get(LIST))
    assert text.count("2/5 held different limits: 3, 5") == 2
    assert "different limits: the holders of a name state different limits" in text
    assert "write the same limit in both" in text


def test_a_lock_and_a_permit_of_one_name_are_shown(viewer: Client) -> None:
    lock("export").acquire().disown()
    holders(1, limit=2)
    assert text_of(viewer.get(LIST)).count("different limits: 1, 2") == 2


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_the_slot_that_was_chosen_is_released(
    slot: int, operator: Client, caplog: pytest.LogCaptureFixture
) -> None:
    held = holders(3)
    question = operator.post(LIST, {"lock": id_of(held[slot])})
    assert f"export slot {slot} {held[slot].fingerprint}" in text_of(question)
    assert f'aria-label="Release export, slot {slot} ' in question.content.decode()
    (message,) = release(operator, id_of(held[slot]))
    assert message.startswith(f"Released: export, slot {slot}.")
    left = {one.slot for one in who_holds("export", slots=True).locks}
    assert left == {0, 1, 2} - {slot}
    assert LogEntry.objects.get().object_repr == f"export, slot {slot}"
    assert f"redlock export, slot {slot}: lock {held[slot].fingerprint} of " in caplog.text


def test_a_slot_that_was_acquired_again_is_kept(operator: Client) -> None:
    held = holders(3)
    shown = id_of(held[1])
    held[1].release()
    again = lock("export", limit=3).acquire()
    again.disown()
    (message,) = release(operator, shown)
    assert message.startswith("Not released: export, slot 1.")
    assert again.locked


def test_pages_are_english_where_the_admin_has_another_language(
    viewer: Client, settings: Settings
) -> None:
    settings.LANGUAGE_CODE = "de"
    (one,) = holders(1).values()
    text = text_of(viewer.get(LIST))
    assert "Abmelden" in text  # Django's own words
    assert f"slot {one.slot} · 1/3 held" in text
    with translation.override("de"):
        assert lock_rows.age(timezone.now() - timedelta(hours=3)) == "3\xa0hours"
