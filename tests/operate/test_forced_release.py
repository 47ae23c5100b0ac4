"""Forced release: only of the lock that was shown, with a log line and a signal."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django import lock
from redlock_django.exceptions import LockLost
from redlock_django.operate.forced_release import Freed, ReleaseOutcome, force_release
from redlock_django.operate.inspection import who_holds
from redlock_django.signals import lock_force_released
from tests.live.left_over import nothing_left
from tests.waiting import until

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster

pytestmark = [
    pytest.mark.live, pytest.mark.django_db, pytest.mark.usefixtures("linked_masters")
]  # fmt: skip
R = "order:1"


def everywhere(masters: list[LocalMaster]) -> None:
    until(lambda: len(who_holds(R).locks[0].leading) == len(masters), what="on all masters")


@pytest.mark.attack
def test_the_lock_that_was_shown_is_released_and_its_holder_loses_it(
    masters: list[LocalMaster], caplog: Any
) -> None:
    received: list[Freed] = []

    def receive(sender: Any, freed: Freed, by: str, **_: Any) -> None:
        received.append(freed)
        assert by == "root\\n@host"

    lock_force_released.connect(receive)
    held = lock(R, holder={"path": "/<b>/"}).acquire()
    everywhere(masters)
    fence = held.fence
    with caplog.at_level(logging.WARNING):
        freed = force_release(R, by="root\n@host", fingerprint=held.fingerprint)
    assert freed.outcome is ReleaseOutcome.RELEASED
    assert list(freed.masters.values()) == ["released"] * 5
    assert received == [freed]
    line = next(r.getMessage() for r in caplog.records if "by force" in r.getMessage())
    assert "\n" not in line
    assert line.startswith(f"redlock {R}: lock {held.fingerprint} of ")
    assert "was released by force by root\\n@host: released (" in line
    assert (freed.resource, freed.holder["path"]) == (R, "/<b>/")
    assert "'path': '/<b>/'" in line
    token = held._held_lease.lease.token  # type: ignore[union-attr]
    assert token not in f"{line}{freed}"
    nothing_left(masters)
    with pytest.raises(LockLost):
        held.extend()
    with lock(R) as second:  # the token does not come back, and the fence grows
        assert second.fence > fence


def test_a_foreign_lock_of_any_bytes_can_be_released(masters: list[LocalMaster]) -> None:
    for master in masters:
        with master.client() as client:
            client.set(f"redlock:lock:{R}", b"\xff\x00 theirs")
    freed = force_release(R, by="me")
    assert freed.outcome is ReleaseOutcome.RELEASED
    assert freed.holder == {}
    nothing_left(masters)


def test_without_a_fingerprint_every_holder_of_a_split_vote_is_released(
    masters: list[LocalMaster],
) -> None:
    for number, master in enumerate(masters):
        with master.client() as client:
            client.set(f"redlock:lock:{R}", f"{'abcde'[number] * 32} {{}}")
    one = who_holds(R).locks[0].rivals[0]
    assert force_release(R, by="me", fingerprint=one.fingerprint).outcome is ReleaseOutcome.RELEASED
    assert len(who_holds(R).locks[0].rivals) == 3
    assert force_release(R, by="me").outcome is ReleaseOutcome.RELEASED
    nothing_left(masters)
