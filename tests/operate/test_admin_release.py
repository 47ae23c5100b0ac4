"""Forced releases in the admin: confirmation, permissions, messages, log entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.contrib.admin.models import DELETION, LogEntry
from django.test import Client

from tests.operate.commands import memory
from tests.operate.conftest import LIST, listed, release
from tests.operate.planted import on, plant
from tests.operate.sites import Site, on_stores

if TYPE_CHECKING:
    from collections.abc import Callable

    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.django_db]


def question(client: Client, *ids: str, query: str = "") -> str:
    """Ask for the release of these locks, and return the page that asks for confirmation."""
    return client.post(LIST + query, {"lock": ids}).content.decode()


@on_stores
def test_one_lock_is_released_after_confirmation(
    site: Site, operator: Client, caplog: pytest.LogCaptureFixture
) -> None:
    print_ = site.put("order:1", ttl=50)
    page = operator.get(LIST).content.decode()
    assert "web1 · pid 7 · shop" in page
    assert f'value="{print_}:order:1"' in page
    body = question(operator, f"{print_}:order:1")
    for text in ("order:1", "web1", "does not stop the holder", "Yes, release it"):
        assert text in body, text
    assert f'value="{print_}:order:1" aria-label="Release order:1 {print_}" checked' in body
    assert site.holds("order:1")
    (message,) = release(operator, f"{print_}:order:1")
    assert message.startswith("Released: order:1.")
    assert message.count(": released") == len(site.servers)
    assert not site.holds("order:1")
    entry = LogEntry.objects.get()
    assert (entry.action_flag, entry.object_repr) == (DELETION, "order:1")
    assert entry.change_message.count(": released") == len(site.servers)
    assert f"was released by force by {entry.user.get_username()}: released" in caplog.text
    assert "order:1" in operator.get("/admin/").content.decode()


@on_stores
def test_many_locks_are_released_after_confirmation(site: Site, operator: Client) -> None:
    ids = [f"{site.put(f'order:{n}', token=f'{n:x}')}:order:{n}" for n in range(12)]
    site.put("user:1")
    body = question(operator, *ids, query="?q=order")
    assert "these 12 locks" in body
    assert "user:1" not in body
    assert site.holds("order:3")
    (message,) = release(operator, *ids, *ids)
    assert "order:9" in message
    assert "and 2 more" in message
    assert not any(site.holds(f"order:{n}") for n in range(12))
    assert site.holds("user:1")
    assert LogEntry.objects.count() == 12


@pytest.mark.attack
@on_stores
def test_a_lock_acquired_again_is_not_released(site: Site, operator: Client) -> None:
    shown = site.put("order:1")
    site.free("order:1")
    now = site.put("order:1", token="b", host="web2")
    body = question(operator, f"{shown}:order:1")
    assert f"<strong>order:1</strong></bdi> <code>{shown}</code> It has been released" in body
    assert "acquired by web2" in body
    assert "Yes, release" not in body
    (message,) = release(operator, f"{shown}:order:1")
    assert "acquired again" in message
    assert now in message
    assert site.holds("order:1")
    assert not LogEntry.objects.exists()


@on_stores
def test_a_lock_that_is_no_longer_held(site: Site, operator: Client) -> None:
    shown = site.put("order:1")
    site.free("order:1")
    (message,) = release(operator, f"{shown}:order:1")
    assert "no longer held" in message
    assert "no longer held" in question(operator, f"{shown}:order:1")


@on_stores
def test_a_form_that_names_no_lock_releases_nothing(site: Site, operator: Client) -> None:
    site.put("order:1")
    for ids in ((), ("nonsense",), ("00000000:a b",), (":order 1",)):
        answer = operator.post(LIST, {"lock": ids}, follow=True)
        assert answer.redirect_chain == [(LIST, 302)]
        assert "Nothing was released" in answer.content.decode()
    assert release(operator, "nonsense") == []
    assert release(operator, ":order:1")[-1].startswith("Not released: order:1.")
    assert "contains a space" in release(operator, "00000000:a b")[-1]
    assert site.holds("order:1")


def test_a_lock_of_another_alias_is_released(five: list[LocalMaster], operator: Client) -> None:
    print_ = plant(five, "invoice:1", prefix="payments")
    assert "Yes, release it" in question(operator, f"{print_}:invoice:1", query="?using=payments")
    assert "no longer held" in release(operator, f"{print_}:invoice:1")[-1]
    message = release(operator, f"{print_}:invoice:1", using="payments")[-1]
    assert message.startswith("Released: invoice:1.")


@pytest.mark.parametrize("site", ["memory"], indirect=True)
def test_a_release_without_a_quorum_is_reported(site: Site, operator: Client) -> None:
    shown = site.put("order:1")
    memory().down[:2] = [True, True]
    (message,) = release(operator, f"{shown}:order:1")
    assert "Too few servers answered: order:1" in message
    assert LogEntry.objects.count() == 1


def test_a_rival_is_released_alone(five: list[LocalMaster], operator: Client) -> None:
    plant(five[:2], "order:1")
    rival = plant(five[2:4], "order:1", token="b", host="web2")
    assert listed(operator) == ["order:1", "order:1"]
    page = operator.get(LIST).content.decode()
    assert "disagreeing" in page
    assert f'value="{rival}:order:1"' in page
    body = question(operator, f"{rival}:order:1")
    assert "web2" in body
    assert "web1" not in body
    (message,) = release(operator, f"{rival}:order:1")
    assert message.startswith("Released: order:1.")
    assert on(five, "order:1") == 2


RIGHTS: dict[str, tuple[int, int, int]] = {
    "": (403, 403, 403),
    "view_heldlock": (200, 403, 403),
    "release_heldlock": (403, 403, 403),
    "view_heldlock release_heldlock": (200, 200, 302),
    "nobody": (302, 302, 302),  # to the login
}
"""The answers to a look at the list, to the choice of a lock, and to a confirmed release."""


@pytest.mark.attack
@on_stores
@pytest.mark.parametrize("rights", RIGHTS)
def test_what_a_user_may_do(site: Site, staff: Callable[..., Client], rights: str) -> None:
    asked = {"lock": f"{site.put('order:1')}:order:1"}
    client = Client() if rights == "nobody" else staff(*rights.split())
    page = client.get(LIST)
    answers = [page, client.post(LIST, asked), client.post(LIST, {**asked, "confirmed": "yes"})]
    assert tuple(answer.status_code for answer in answers) == RIGHTS[rights]
    may_release = rights.count(" ") == 1
    assert site.holds("order:1") is not may_release
    assert (b'name="lock"' in page.content) is (b"Release selected" in page.content) is may_release
    index = client.get("/admin/").content.decode()
    assert ("Held locks" in index) is ("view_heldlock" in rights)


@pytest.mark.attack
@on_stores
def test_release_requires_post_and_csrf_token(
    site: Site, operator: Client, staff: Callable[..., Client]
) -> None:
    print_ = site.put("order:1")
    data = {"lock": f"{print_}:order:1", "confirmed": "yes"}
    assert operator.get(LIST, data).status_code == 200
    strict = staff("view_heldlock", "release_heldlock", enforce_csrf_checks=True)
    assert strict.post(LIST, data).status_code == 403
    assert site.holds("order:1")
