"""A payment that is requested again is one payment, whichever process dies in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.live.payments.paying import Answer, Client, Shop, all_at_once, new_key, new_order
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]

# Every pair of server, transaction and database is covered.
SHOPS = [
    "wsgi-atomic-postgres",
    "wsgi-plain-sqlite",
    "asgi-atomic-sqlite",
    "asgi-plain-postgres",
]


def over(*by_day: str, shops: list[str] = SHOPS) -> pytest.MarkDecorator:
    """Return the shops for a test: these by day, and the others every night."""
    nightly = pytest.mark.nightly
    params = [pytest.param(name, marks=[] if name in by_day else [nightly]) for name in shops]
    return pytest.mark.parametrize("shop", params, indirect=True)


opposites = over(SHOPS[0], SHOPS[3])  # both servers, with and without transactions
plain = over(SHOPS[3], shops=SHOPS[1::2])


@opposites
def test_a_retry_is_given_the_same_answer(shop: Shop) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    first, second = (client.pay("function", order, sent) for sent in (key, f'"{key}"'))
    assert (first.status, second.status) == (201, 201), shop.site.log
    assert (first.replayed, second.replayed) == (False, True)
    assert second.body == first.body
    for name in ("Content-Type", "Location"):
        assert second.headers[name] == first.headers[name]
    assert second.headers["Cache-Control"] == "no-store"
    assert second.headers["Idempotency-Key"] == f'"{key}"'
    assert "seen=" in first.headers["Set-Cookie"]
    assert "seen=" not in (second.headers["Set-Cookie"] or "")
    assert shop.books.payments(order) == 1


@plain
@pytest.mark.parametrize("kind", ["async", "async-complete"])
def test_a_retry_of_an_async_view(shop: Shop, kind: str) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    first, second = (client.pay(kind, order, key) for _ in range(2))
    assert (first.status, second.status) == (201, 201), shop.site.log
    assert (first.replayed, second.replayed) == (False, True)
    assert second.body == first.body
    assert shop.books.payments(order) == 1


@pytest.fixture(params=["postgres", pytest.param("sqlite", marks=pytest.mark.nightly)])
def two_shops(request: pytest.FixtureRequest, shops: Callable[[str], Shop]) -> list[Shop]:
    """Two servers with two processes each, and one database."""
    return [shops(name) for name in SHOPS if name.endswith(request.param)]


@pytest.mark.parametrize("kind", ["function", "wait"])
def test_fifty_requests_at_once_run_the_view_once(two_shops: list[Shop], kind: str) -> None:
    one, other = two_shops
    client, order, key = one.client(), new_order(), new_key()
    answers = all_at_once([client, client.at(other.site)], kind, order, key, 50)
    waits = kind == "wait"
    one_is_done(answers, waits=waits)
    assert one.books.payments(order) == 1
    assert client.pay(kind, order, key).replayed is True


@plain
def test_fifty_requests_at_once_run_once_around_the_view(shop: Shop) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    one_is_done(all_at_once([client], "async", order, key, 50), waits=False)
    assert shop.books.payments(order) == 1


def one_is_done(answers: list[Answer], *, waits: bool) -> None:
    """Check that one of them ran, and that the others are replays or conflicts."""
    done = [answer for answer in answers if answer.status == 201]
    assert len({answer.body for answer in done}) == 1
    assert [answer.replayed for answer in done].count(False) == 1
    for answer in answers:
        if answer not in done:
            assert (answer.status, answer.code) == (409, "idempotency-key-in-flight")
            assert answer.headers["Retry-After"] == "1"
    assert not waits or len(done) == len(answers)


# Processes that are killed.


def retry(client: Client, kind: str, order: int, key: str) -> Answer:
    """Retry, as a client should, until the answer has no `Retry-After`."""
    answers: list[Answer] = []

    def is_answered() -> bool:
        answers.append(client.pay(kind, order, key))
        # The masters may answer a busy machine too late for the short TTL.
        if answers[-1].code not in ("idempotency-key-in-flight", "idempotency-unavailable"):
            return True
        assert int(answers[-1].headers["Retry-After"]) >= 1
        return False

    until(is_answered, "the end of a dead process's lease", longest=0.2)
    return answers[-1]


ATOMIC = {
    # moment: whether it was committed
    "in the view": False,
    "before the commit": False,
    "after the commit": True,
    "before the answer": True,
}
ASYNC = {
    # kind and moment: code of the retry, payments in the end
    # The view commits by itself, and it is not known how far it came.
    ("async-short", "in the view"): ("idempotency-outcome-uncertain", 1),
    ("async-short", "before the answer"): ("", 1),
    # Recorded by the view in its own transaction.
    ("async-complete", "in the view"): ("idempotency-outcome-uncertain", 0),
    ("async-complete", "before the commit"): ("idempotency-outcome-uncertain", 0),
    ("async-complete", "after the commit"): ("", 1),
}


@opposites
def test_processes_that_are_killed(shop: Shop, subtests: pytest.Subtests) -> None:
    """All are killed before the retries, so that their leases run out together."""
    client = shop.client()
    asked = {moment: (new_order(), new_key()) for moment in ATOMIC}
    for moment, (order, key) in asked.items():
        client.is_left_alone("short", order, key, moment)
        assert shop.books.payments(order) == ATOMIC[moment], moment
    for moment, (order, key) in asked.items():
        with subtests.test(moment):
            answer = retry(client, "short", order, key)
            assert (answer.status, answer.replayed) == (201, ATOMIC[moment]), shop.site.log
            assert shop.books.payments(order) == 1
            assert answer.json == {"payment": payment(shop, order)}


@pytest.mark.attack
@plain
def test_processes_that_are_killed_in_an_async_view(shop: Shop, subtests: pytest.Subtests) -> None:
    client = shop.client()
    asked = {(kind, moment): (new_order(), new_key()) for kind, moment in ASYNC}
    for (kind, moment), (order, key) in asked.items():
        client.is_left_alone(kind, order, key, moment)
    for (kind, moment), (order, key) in asked.items():
        code, payments = ASYNC[kind, moment]
        with subtests.test(f"{kind} {moment}"):
            for _ in range(2):
                answer = retry(client, kind, order, key)
                assert answer.code == code, shop.site.log
                assert (answer.status, answer.replayed) == ((409, None) if code else (201, True))
                assert shop.books.payments(order) == payments


def payment(shop: Shop, order: int) -> int:
    """Return the number of the only payment for an order."""
    [(number,)] = shop.books.rows(f'SELECT id FROM payment WHERE "order" = {order}')
    return int(number)


# Clients that disconnect.


@opposites
def test_a_client_that_goes_away_finds_the_result(shop: Shop) -> None:
    leave_and_retry(shop, "function")


@pytest.mark.attack
@pytest.mark.parametrize("shop", ["asgi-plain-postgres"], indirect=True)
def test_an_async_view_runs_to_its_end_without_its_client(shop: Shop) -> None:
    leave_and_retry(shop, "async")


def leave_and_retry(shop: Shop, kind: str) -> None:
    """Disconnect while the view runs; the retry gets its response."""
    client, order, key = shop.client(), new_order(), new_key()
    entered, opened = shop.gate(order)
    with client.asking(kind, order, key):
        until(entered.exists, f"the view: {shop.site.log}")
    assert client.pay(kind, order, key).code == "idempotency-key-in-flight"
    opened.touch()
    answer = retry(client, kind, order, key)
    assert (answer.status, answer.replayed) == (201, True), shop.site.log
    assert shop.books.payments(order) == 1


# Views that outlive their lease.


@opposites
def test_when_the_lease_is_over_the_row_decides(shop: Shop) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    with shop.waiting(client, "forgotten", order, key) as first:
        # Not renewed, so that the second request gets the lock while the first one runs.
        until(lambda: not shop.locks("forgotten"), "the end of the lease")
        with shop.asked(client, "forgotten", order, key) as second:
            until(
                lambda: shop.locks("forgotten"),
                f"the second request: {shop.site.log}",
            )
            assert first.answer.status == 201, shop.site.log
        assert (second.answer.status, second.answer.replayed) == (201, True), shop.site.log
        assert second.answer.body == first.answer.body
    assert shop.books.payments(order) == 1
