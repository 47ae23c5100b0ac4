"""A payment that is requested again is one payment, whichever process dies in between."""

from __future__ import annotations

import http.client
import secrets
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf.global_settings import DATA_UPLOAD_MAX_MEMORY_SIZE

from tests.live.payments.paying import JSON, Answer, Client, Shop, all_at_once, new_key, new_order
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


# Requests that real servers pass on in their own way.


@over("asgi-plain-postgres", shops=SHOPS[2:])
def test_a_body_of_unknown_length_is_too_large_as_well(shop: Shop) -> None:
    """Only ASGI servers accept a body of unknown length."""
    client, order, key = shop.client(), new_order(), new_key()

    def chunks(size: int) -> Iterator[bytes]:
        yield b"x" * (size // 2)
        yield b"x" * (size - size // 2)

    refused = client.pay("body", order, key, chunks(DATA_UPLOAD_MAX_MEMORY_SIZE + 1))
    assert (refused.status, refused.code) == (413, "idempotency-body-too-large")
    assert shop.books.payments(order) == 0
    taken = client.pay("body", order, key, chunks(DATA_UPLOAD_MAX_MEMORY_SIZE))
    assert (taken.status, taken.json) == (201, {"bytes": DATA_UPLOAD_MAX_MEMORY_SIZE})


@pytest.mark.parametrize("shop", ["wsgi-atomic-postgres"], indirect=True)
def test_half_a_body_burns_no_key(shop: Shop) -> None:
    """The server passes the first half of a body on when the client disconnects after it."""
    client, order, key = shop.client(), new_order(), new_key()
    with client.connected() as connection:
        connection.putrequest("POST", f"/function/{order}/")
        sent = {"Content-Type": "application/json", "Idempotency-Key": key, **client.headers}
        for name, value in {**sent, "Content-Length": str(len(JSON))}.items():
            connection.putheader(name, value)
        connection.endheaders(JSON[:-3])
        connection.sock.shutdown(socket.SHUT_WR)
        response = connection.getresponse()
        assert (response.status, b"incomplete-body" in response.read()) == (400, True)
    assert shop.books.payments(order) == 0
    answer = client.pay("function", order, key)
    assert (answer.status, answer.replayed) == (201, False), shop.site.log


@opposites
def test_a_key_that_is_sent_twice(shop: Shop) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    connection = http.client.HTTPConnection("127.0.0.1", shop.site.port, timeout=60)
    connection.putrequest("POST", f"/function/{order}/")
    for name, value in client.headers.items():
        connection.putheader(name, value)
    for header in (f'"{key}"', f'"{new_key()}"'):
        connection.putheader("Idempotency-Key", header)
    connection.putheader("Content-Length", "0")
    connection.endheaders()
    response = connection.getresponse()
    # gunicorn refuses by itself what uvicorn passes on unchanged.
    answer = Answer(response.status, response.headers, response.read())
    connection.close()
    assert (answer.status, shop.books.payments(order)) == (400, 0), answer
    assert answer.code == "idempotency-key-invalid"


@opposites
def test_nothing_of_a_request_is_given_away(shop: Shop) -> None:
    canary = f"canary{secrets.token_hex(8)}"
    client, seen = shop.client("dora"), dict[str, Any]()
    body = f'{{"card": "{canary}"}}'.encode()

    def look() -> None:
        for server in shop.masters:
            with server.client() as redis:
                names = [name.decode() for name in redis.scan_iter(count=1000)]
                seen[server.name + str(len(seen))] = " ".join(names)
                # A value that is not a string is not a key.
                seen["values" + str(len(seen))] = repr(redis.mget(names) if names else [])

    for kind in ("function", "locked"):
        order, key = new_order(), f"{canary}-{kind}"
        with shop.waiting(client, kind, order, key):
            assert client.pay(kind, order, key).code == "idempotency-key-in-flight"
            look()
        assert client.pay(kind, order, key).replayed is True, shop.site.log
        assert client.pay(kind, order, key, body).status == 422
        for do in ("raise", "fail at commit", "500", "404"):
            client.pay(kind, new_order(), f"{canary}{new_key()}", body, do=do)
        client.pay(kind, new_order(), f"{canary} {new_key()}", body)
        look()
    client.is_left_alone("short", new_order(), f"{canary}-dead", "in the view")
    columns = "key_hash, fingerprint, method, path"
    seen["rows"] = repr(shop.books.rows(f"SELECT {columns} FROM redlock_django_idempotencyrecord"))
    seen["log"] = shop.site.log
    assert "Internal Server Error" in seen["log"]
    assert any(":lock:idempotency~" in text for text in seen.values())
    session = client.headers["Cookie"].partition("sessionid=")[2].partition(";")[0]
    token = client.headers["Authorization"].partition(" ")[2]
    assert len(session) > 20
    assert len(token) > 20
    for secret in (canary, session, token, client.csrf):
        assert not [where for where, text in seen.items() if secret in text]
