"""The retention of a response, and of its record after that."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from redlock_django import idempotent
from redlock_django.idempotency import recorder
from redlock_django.idempotency.records import store_of
from redlock_django.idempotency.settings import settings_of
from redlock_django.models import IdempotencyRecord
from tests.idempotency.conftest import Site, make_order

pytestmark = pytest.mark.django_db(transaction=True)
Later = Callable[[timedelta], None]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """Move the expiry of all records into the past."""
    now = timezone.now

    def pass_by(time: timedelta) -> None:
        monkeypatch.setattr(timezone, "now", lambda: now() + time)

    return pass_by


def code(answer: Any) -> str:
    return str(answer.json()["code"])


def test_an_uncertain_record_does_not_expire(site: Site, later: Later, plain: None) -> None:
    async def killed(request: Any, **_: Any) -> None:
        raise KeyboardInterrupt

    site.serve(idempotent(killed))
    with pytest.raises(KeyboardInterrupt):
        site.post()
    site.post()
    later(timedelta(days=10))
    assert code(site.post()) == "idempotency-outcome-uncertain"


def purge(batch: int = 1000) -> list[int]:
    return [rows for _, rows in store_of(settings_of("default")).purge(batch)]


def test_purging_empties_first_and_deletes_later(site: Site, later: Later) -> None:
    site.serve(idempotent(make_order))
    for key in range(5):
        site.post(str(key))
    IdempotencyRecord.objects.filter(pk=record_of(0)).update(state="uncertain", expires_at=None)
    assert purge() == []
    later(timedelta(days=2))
    assert purge(batch=3) == [3, 1]
    assert purge() == []
    emptied = IdempotencyRecord.objects.filter(state="tombstone")
    assert {(bytes(row.body), row.status) for row in emptied} == {(b"", 201)}
    assert code(site.post("1")) == "idempotency-key-expired"
    assert IdempotencyRecord.objects.filter(state="uncertain").exists()
    later(timedelta(days=32))
    assert purge(batch=3) == [3, 1, 1]
    assert not IdempotencyRecord.objects.exists()


def test_purging_reads_by_index(site: Site) -> None:
    store = store_of(settings_of("default"))
    expired, unresolved, to_empty = [rows.order_by(by) for _, rows, by in store.purgeable()]
    assert "redlock_state_expires" in to_empty.explain()
    assert "redlock_state_expires" in unresolved.explain()
    assert "expires_at" in expired.explain()


def record_of(place: int) -> int:
    return IdempotencyRecord.objects.order_by("pk").values_list("pk", flat=True)[place]


@pytest.mark.attack
def test_expired_responses_are_deleted_without_a_purge(
    site: Site, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_EVERY", 1)
    site.serve(idempotent(make_order))
    site.post("old")
    later(timedelta(days=2))
    site.post("new")
    old, new = IdempotencyRecord.objects.order_by("pk")
    assert (old.state, bytes(old.body), old.headers) == ("tombstone", b"", [])
    assert new.state == "completed"
    assert code(site.post("old")) == "idempotency-key-expired"
