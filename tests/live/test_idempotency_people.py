"""A key belongs to one user, whatever its session or token, and only while permitted."""

from __future__ import annotations

import pytest

from tests.live.payments.paying import Client, Shop, new_key, new_order
from tests.live.test_idempotency_once import opposites, plain

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]


@opposites
@pytest.mark.parametrize("kind", ["function", "api"])
def test_a_new_session_and_a_new_token_are_the_same_person(shop: Shop, kind: str) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    client.permit("yes")
    first, before = client.pay(kind, order, key), client.credentials
    client.log_in()
    assert not set(before.split()) & set(client.credentials.split()) - {"Token"}
    again = client.pay(kind, order, key)
    assert (again.status, again.replayed, again.body) == (201, True, first.body), shop.site.log
    assert shop.books.payments(order) == 1


@plain
def test_a_new_session_at_an_async_view(shop: Shop) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    first = client.pay("async", order, key)
    client.log_in()
    assert client.pay("async", order, key).body == first.body
    assert shop.books.payments(order) == 1


@opposites
@pytest.mark.parametrize("kind", ["permitted", "api"])
def test_a_user_that_has_lost_the_right_is_shown_nothing(shop: Shop, kind: str) -> None:
    client, order, key = shop.client("carl"), new_order(), new_key()
    client.permit("yes")
    first = client.pay(kind, order, key)
    assert first.status == 201, shop.site.log
    client.permit("no")
    refused = client.pay(kind, order, key)
    assert (refused.status, refused.replayed) == (403, None)
    assert b"payment" not in refused.body
    assert "Location" not in refused.headers
    client.permit("yes")
    assert client.pay(kind, order, key).body == first.body
    assert shop.books.payments(order) == 1


@opposites
@pytest.mark.parametrize("kind", ["function", "api"])
def test_other_users_with_the_same_key_have_their_own_record(shop: Shop, kind: str) -> None:
    order, key = new_order(), new_key()
    answers = []
    for name in ("ann", "bob"):
        client = shop.client(name)
        client.permit("yes")
        answers.append([client.pay(kind, order, key) for _ in range(2)])
    assert [[answer.replayed for answer in each] for each in answers] == [[False, True]] * 2
    [anns, bobs] = answers
    assert anns[0].body == anns[1].body != bobs[0].body == bobs[1].body
    assert shop.books.payments(order) == 2


@opposites
@pytest.mark.parametrize("kind", ["function", "cached"])
def test_an_anonymous_client_never_gets_the_replay_of_a_user(shop: Shop, kind: str) -> None:
    ann, order, key = shop.client(), new_order(), new_key()
    first = ann.pay(kind, order, key)
    client = anonymous(shop)
    for _ in range(2):
        answer = client.pay(kind, order, key)
        assert (answer.status, answer.code) == (400, "idempotency-key-unscoped"), shop.site.log
        assert answer.body != first.body
    assert shop.books.payments(order) == 1


@opposites
def test_an_anonymous_client_may_have_a_scope(shop: Shop) -> None:
    client, order, key = anonymous(shop), new_order(), new_key()
    first, second = (client.pay("by-address", order, key) for _ in range(2))
    assert (first.replayed, second.replayed) == (False, True)
    assert second.body == first.body
    # An anonymous scope never equals a user who is logged in.
    assert shop.client().pay("by-address", order, key).replayed is False
    assert shop.books.payments(order) == 2


@opposites
def test_csrf_protection_runs_before_a_replay(shop: Shop) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    assert client.pay("function", order, key).status == 201
    forged = client.pay("function", order, key, headers={"X-CSRFToken": "forged"})
    assert (forged.status, forged.replayed) == (403, None)
    assert b'"payment"' not in forged.body


def anonymous(shop: Shop) -> Client:
    """Return an anonymous client that has only the CSRF cookie."""
    return shop.client().without_name()
