"""The counters of repeated requests, by alias."""

from __future__ import annotations

import pytest

from redlock_django import idempotent
from redlock_django.idempotency.key import lock_name
from redlock_django.locking.reports import counters
from redlock_django.models import IdempotencyRecord
from redlock_django.testing import held_elsewhere
from tests.idempotency.conftest import Site, make_order, record

pytestmark = pytest.mark.django_db(transaction=True)
NAMES = ("replayed", "conflicted", "mismatched", "uncertain")


def counted() -> dict[str, int]:
    return {name: n for name in NAMES if (n := getattr(counters["default"], name))}


def test_each_kind_of_repetition_is_counted(site: Site) -> None:
    site.serve(idempotent(make_order))
    site.post("one")
    site.post(None)
    assert site.post("two words").status_code == 400
    assert counted() == {}
    for _ in range(2):
        site.post("one")
    assert counted() == {"replayed": 2}
    assert site.post("one", {"total": 2}).status_code == 422
    assert counted() == {"replayed": 2, "mismatched": 1}
    name = lock_name(record().key_hash)
    IdempotencyRecord.objects.update(state="running")
    with held_elsewhere(name):
        assert site.post("one").status_code == 409
    assert counted() == {"replayed": 2, "mismatched": 1, "conflicted": 1}
    for _ in range(2):  # the first retry marks it uncertain, the second finds it uncertain
        assert site.post("one").json()["code"] == "idempotency-outcome-uncertain"
    assert counted()["uncertain"] == 2
