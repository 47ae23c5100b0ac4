"""Forced releases in the admin: confirmation, permissions, messages, log entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.messages import get_messages
from django.test import Client

from tests.operate.conftest import LIST, RELEASE
from tests.operate.planted import on, plant
from tests.operate.sites import Site, on_stores

if TYPE_CHECKING:
    from collections.abc import Callable

    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.django_db]


def detail(fingerprint: str, resource: str) -> str:
    return f"{LIST}{fingerprint}_3Adefault_3A{resource.replace(':', '_3A')}/change/"


def confirm(client: Client, *ids: str) -> list[str]:
    """Confirm a forced release and return the messages."""
    answer: Any = client.post(RELEASE, {"_selected_action": ids, "confirmed": "yes"})
    assert answer.status_code == 302, answer.content.decode()
    return [str(message) for message in get_messages(answer.wsgi_request)]


@on_stores
def test_one_lock_is_released_from_its_page(
    site: Site, operator: Client, caplog: pytest.LogCaptureFixture
) -> None:
    print_ = site.put("order:1", ttl=50)
    page = operator.get(detail(print_, "order:1")).content.decode()
    assert "web1 · pid 7 · shop" in page
    assert page.count("redlock-has-own") == len(site.servers)
    assert f'value="{print_}:default:order:1"' in page
    question = operator.post(RELEASE, {"_selected_action": f"{print_}:default:order:1"})
    body = question.content.decode()
    for text in ("order:1", "web1", "does not stop the holder", "Yes, release it"):
        assert text in body, text
    assert site.holds("order:1")
    (message,) = confirm(operator, f"{print_}:default:order:1")
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
    ids = [f"{site.put(f'order:{n}', token=f'{n:x}')}:default:order:{n}" for n in range(12)]
    site.put("user:1")
    question = operator.post(
        f"{LIST}?q=order",
        {"action": "release_selected", "index": "0", "select_across": "1", "_selected_action": ids},
    )
    assert question.status_code == 200
    body = question.content.decode()
    assert "these 12 locks" in body
    assert "user:1" not in body
    assert site.holds("order:3")
    (message,) = confirm(operator, *ids)
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
    question = operator.post(RELEASE, {"_selected_action": f"{shown}:default:order:1"})
    assert "acquired by web2" in question.content.decode()
    assert "Yes, release" not in question.content.decode()
    (message,) = confirm(operator, f"{shown}:default:order:1")
    assert "acquired again" in message
    assert now in message
    assert site.holds("order:1")
    assert not LogEntry.objects.exists()
    back = operator.get(detail(shown, "order:1"), follow=True).content.decode()
    assert "acquired by web2" in back


@on_stores
def test_lock_that_is_no_longer_held(site: Site, operator: Client) -> None:
    shown = site.put("order:1")
    site.free("order:1")
    (message,) = confirm(operator, f"{shown}:default:order:1")
    assert "no longer held" in message
    assert "no longer held" in operator.get(detail(shown, "order:1"), follow=True).content.decode()
    assert confirm(operator, "nonsense", "a:nope:b", "00000000:default:a b") != []


def test_a_release_without_a_quorum_is_reported(
    five: list[LocalMaster], short_wait: None, operator: Client
) -> None:
    shown = plant(five, "order:1")
    for master in five[:3]:
        master.pause()
    (message,) = confirm(operator, f"{shown}:default:order:1")
    assert "Too few servers answered: order:1" in message
    for master in five[:3]:
        master.resume()
    assert LogEntry.objects.count() == 1


def test_a_database_that_does_not_answer(database_down: None, operator: Client) -> None:
    (message,) = confirm(operator, "0123abcd:default:order:1")
    assert "Too few servers answered: order:1" in message


def test_a_rival_is_released_alone(five: list[LocalMaster], operator: Client) -> None:
    most = plant(five[:3], "order:1")
    rival = plant(five[3:], "order:1", token="b", host="web2")
    page = operator.get(detail(most, "order:1")).content.decode()
    assert page.count("redlock-has-rival") == 2
    assert f'value="{rival}:default:order:1"' in page
    (message,) = confirm(operator, f"{rival}:default:order:1")
    assert message.startswith("Released: order:1.")
    assert on(five, "order:1") == 3


@pytest.mark.attack
@on_stores
def test_release_requires_the_permission(
    site: Site, viewer: Client, staff: Callable[..., Client]
) -> None:
    print_ = site.put("order:1")
    selected = {"_selected_action": f"{print_}:default:order:1"}
    for page in (LIST, detail(print_, "order:1")):
        body = viewer.get(page).content.decode()
        assert "elease_selected" not in body
        assert "Force release" not in body
    action = {"action": "release_selected", "index": "0", **selected}
    viewer.post(LIST, action)
    for client in (viewer, staff()):
        for data in (selected, {**selected, "confirmed": "yes"}):
            assert client.post(RELEASE, data).status_code == 403
    assert Client().post(RELEASE, {**selected, "confirmed": "yes"}).status_code == 302
    assert site.holds("order:1")


@on_stores
def test_release_requires_post_and_csrf_token(
    site: Site, operator: Client, staff: Callable[..., Client]
) -> None:
    print_ = site.put("order:1")
    data = {"_selected_action": f"{print_}:default:order:1", "confirmed": "yes"}
    back = operator.get(RELEASE, data, follow=True)
    assert back.redirect_chain == [(LIST, 302)]
    assert "Nothing was released." in back.content.decode()
    for url in (LIST, detail(print_, "order:1")):
        operator.get(url, {**data, "action": "release_selected", "index": "0"})
    strict = staff("view_heldlock", "release_heldlock", enforce_csrf_checks=True)
    assert strict.post(RELEASE, data).status_code == 403
    assert site.holds("order:1")
