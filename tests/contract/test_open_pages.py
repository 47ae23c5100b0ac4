"""The page on which a row is edited is known in every store: `edit_locks/presence.py`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from redlock_django.edit_locks.presence import Presence, editors_of
from redlock_django.locking.services import locks
from testproject.shop.models import Order
from tests.contract.stores import Store, ZooKeeper
from tests.waiting import until

ROW, OTHER = Order(pk=7), Order(pk=8)


def page(user: str, page_id: str = "", ticket: str = "", row: Order = ROW) -> Presence:
    known: Any = SimpleNamespace(pk=user, get_full_name=lambda: user)
    return Presence(SimpleNamespace(user=known), row, "default", page_id, ticket)


def reporting(shown: Presence, ticket: str | None = None) -> Presence:
    """Return the page as a process sees it that gets its report."""
    user = shown.viewer.user
    return page(user, shown.page, shown.ticket if ticket is None else ticket)


def pass_time(store: Store, seconds: float) -> None:
    """Make locks end earlier, but not in ZooKeeper, whose servers measure those handed on."""
    if not isinstance(store, ZooKeeper):
        store.pass_time(seconds)


def test_a_page_is_renewed_taken_over_and_left(store: Store) -> None:
    hers, his = page("anna"), page("bob")
    assert hers.open() is None
    assert str(his.open()).startswith("anna has had this open since")
    pass_time(store, 40)
    hers = reporting(hers)
    assert hers.open() is None
    pass_time(store, 40)  # more than the TTL since it was opened
    assert str(his.open()).startswith("anna")
    his = reporting(his)
    assert his.open(take=True) is None
    assert str(reporting(hers).open()).startswith("bob")
    reporting(hers).leave()
    assert str(page("carl").other()).startswith("bob")
    reporting(his).leave()
    assert page("carl").other() is None
    assert hers.open() is None


def test_rows_that_others_have_open_are_found_with_one_question(store: Store) -> None:
    hers, his = page("anna"), page("bob", row=OTHER)
    assert (hers.open(), his.open()) == (None, None)
    found = editors_of(his.viewer, [ROW, OTHER, Order(pk=9)], "default")
    assert [(row.pk, editor.name) for row, editor in found] == [(7, "anna")]


def test_a_page_that_is_not_renewed_ends_with_its_ttl(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(store, ZooKeeper):
        monkeypatch.setattr("redlock_django.edit_locks.presence.TTL", 1.0)
    hers = page("anna")
    hers.open()
    monkeypatch.setattr("redlock_django.edit_locks.presence.TTL", 60.0)
    pass_time(store, 62)
    until(lambda: page("bob").open() is None, "the page has ended")
    assert str(reporting(hers).open()).startswith("bob")


@pytest.mark.parametrize("lost", ["the answer", "everything"])
def test_a_page_without_its_last_ticket_is_known_by_its_id(store: Store, lost: str) -> None:
    hers = page("anna")
    hers.open()
    first = hers.ticket
    reporting(hers).open()  # whose answer does not arrive
    late = reporting(hers, first if lost == "the answer" else "")
    assert late.open() is None
    assert late.ticket not in ("", first)
    assert str(page("bob").other()).startswith("anna")


def test_a_page_outlasts_the_process_that_opened_it(store: Store) -> None:
    """As after a deployment, also where the locks of a process end with it."""
    if not store.backend.is_shared:
        pytest.skip("its locks are in the memory of a process")
    hers = page("anna")
    hers.open()
    locks.close()
    assert str(page("bob").open()).startswith("anna")
    assert reporting(hers).open() is None
