"""Records in a Redis cache: a process dies at every moment, and unknown outcomes are reported."""

from __future__ import annotations

import pytest

from tests.live.payments.paying import Client, Shop, new_key, new_order
from tests.live.test_idempotency_once import SHOPS, opposites, over, plain, retry
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]

UNCERTAIN = "idempotency-outcome-uncertain"
ROLLED_BACK = {
    # moment: payments after the death, code of the retry, payments in the end
    "before the record": (0, "", 1),
    "before the view": (0, UNCERTAIN, 0),
    "in the view": (0, UNCERTAIN, 0),
    "after the commit": (1, UNCERTAIN, 1),
    "before the response is kept": (1, UNCERTAIN, 1),
    "after the response is kept": (1, UNCERTAIN, 1),
    "before the state is kept": (1, UNCERTAIN, 1),
    "after the state is kept": (1, "", 1),
    "before the answer": (1, "", 1),
}
AT_ONCE = {
    # Each statement commits; there is no moment between the view's last one and COMMIT.
    **ROLLED_BACK,
    "in the view": (1, UNCERTAIN, 1),
}


def processes_die(
    shop: Shop, kind: str, moments: dict[str, tuple[int, str, int]], subtests: pytest.Subtests
) -> None:
    """Kill a process at each moment, send the request again, and check each answer.

    All are killed before the retries, so that their leases run out together.
    """
    client = shop.client()
    asked = {moment: (new_order(), new_key()) for moment in moments}
    for moment, (order, key) in asked.items():
        client.is_left_alone(kind, order, key, moment)
        assert shop.books.payments(order) == moments[moment][0], moment
    for moment, (order, key) in asked.items():
        with subtests.test(moment):
            is_told(shop, client, kind, order, key, moments[moment])


def is_told(
    shop: Shop, client: Client, kind: str, order: int, key: str, expected: tuple[int, str, int]
) -> None:
    """Send the request again, more than once."""
    after_death, code, in_the_end = expected
    answers = [retry(client, kind, order, key) for _ in range(3)]
    assert [answer.code for answer in answers] == [code] * 3, shop.site.log
    assert shop.books.payments(order) == in_the_end
    if code:
        assert {answer.status for answer in answers} == {409}
        return
    [(paid,)] = shop.books.rows(f'SELECT id FROM payment WHERE "order" = {order}')
    assert [(answer.status, answer.json) for answer in answers] == [(201, {"payment": paid})] * 3
    assert answers[0].replayed is bool(after_death)


@over("wsgi-atomic-postgres", shops=SHOPS[::2])
def test_processes_that_are_killed(shop: Shop, subtests: pytest.Subtests) -> None:
    processes_die(shop, "cached-short", ROLLED_BACK, subtests)


@plain
def test_processes_that_are_killed_without_a_transaction(
    shop: Shop, subtests: pytest.Subtests
) -> None:
    processes_die(shop, "cached-short", AT_ONCE, subtests)


@plain
def test_processes_that_are_killed_in_an_async_view(shop: Shop, subtests: pytest.Subtests) -> None:
    moments = {moment: AT_ONCE[moment] for moment in AT_ONCE if moment != "after the commit"}
    processes_die(shop, "cached-async-short", moments, subtests)


@opposites
def test_a_retry_is_given_the_same_answer(shop: Shop) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    first, second = client.pay("cached", order, key), client.pay("cached", order, key)
    assert (first.status, first.replayed, second.replayed) == (201, False, True), shop.site.log
    assert (second.status, second.body) == (201, first.body)
    assert second.headers["Location"] == first.headers["Location"]
    assert "seen=" not in (second.headers["Set-Cookie"] or "")
    assert client.pay("cached", order, key, b"{}").code == "idempotency-key-reused"
    assert shop.books.payments(order) == 1


@opposites
def test_a_request_whose_response_was_not_stored_does_not_run_again(shop: Shop) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    assert client.pay("cached-stream", order, key).status == 201
    assert client.pay("cached-stream", order, key).code == "idempotency-result-unavailable"
    assert shop.books.payments(order) == 1


@opposites
def test_a_view_that_outlives_its_lease_is_doubted_until_its_end(shop: Shop) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    with shop.waiting(client, "cached-forgotten", order, key) as first:
        until(lambda: not shop.locks("forgotten"), "the end of the lease")
        doubted = client.pay("cached-forgotten", order, key)
        assert (doubted.status, doubted.code) == (409, UNCERTAIN), shop.site.log
        assert (first.answer.status, first.answer.replayed) == (201, False)
    again = client.pay("cached-forgotten", order, key)
    assert (again.status, again.replayed, again.body) == (201, True, first.answer.body)
    assert shop.books.payments(order) == 1


@opposites
def test_a_cache_that_is_down_runs_nothing(shop: Shop) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    shop.cache.kill()
    try:
        refused = client.pay("cached", order, key)
        assert (refused.status, refused.code) == (503, "idempotency-unavailable"), shop.site.log
        assert refused.headers["Retry-After"] == "1"
        assert shop.books.payments(order) == 0
    finally:
        shop.cache.start()
    assert client.pay("cached", order, key).replayed is False
    assert shop.books.payments(order) == 1


@opposites
def test_a_cache_that_goes_down_meanwhile_leaves_a_doubt(shop: Shop) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    with shop.waiting(client, "cached", order, key) as first:
        shop.cache.kill()
        try:
            assert first.answer.status == 201, shop.site.log
            assert client.pay("cached", order, key).code == "idempotency-unavailable"
        finally:
            shop.cache.start()
    assert [client.pay("cached", order, key).code for _ in range(2)] == [UNCERTAIN] * 2
    assert shop.books.payments(order) == 1
