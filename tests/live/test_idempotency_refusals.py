"""Refusals by real servers, with locks and without; and that no secret is revealed."""

from __future__ import annotations

import http.client
import secrets
from typing import Any

import pytest

from tests.live.payments.paying import Answer, Shop, new_key, new_order
from tests.live.test_idempotency_once import opposites, plain
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]


def problem(
    answer: Answer,
    status: int,
    code: str,
    *,
    retryable: bool,
    safe_new_key: bool | None,
    wait: range | None = None,
) -> None:
    """Check a refusal and all its headers; `wait` is the range of `Retry-After`, None for none."""
    details = answer.json
    assert (answer.status, details["code"]) == (status, code), details
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.headers["Cache-Control"] == "no-store"
    assert not answer.replayed
    assert (details["status"], details["type"]) == (status, f"urn:redlock-django:{code}")
    assert details["title"]
    assert details["detail"]
    assert (details["retryable"], details.get("safe_new_key")) == (retryable, safe_new_key)
    seconds = answer.headers["Retry-After"]
    assert seconds is None if wait is None else int(seconds) in wait


ONE = range(1, 2)
TTL = range(1, 11)


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
    problem(answer, 400, "idempotency-key-invalid", retryable=False, safe_new_key=True)


@opposites
def test_a_key_in_flight_and_reused(shop: Shop) -> None:
    client, order, key = shop.client(), new_order(), new_key()

    def reused() -> None:
        answer = client.pay("function", order, key, b"{}")
        problem(answer, 422, "idempotency-key-reused", retryable=False, safe_new_key=False)

    with shop.waiting(client, "function", order, key):
        busy = client.pay("function", order, key)
        problem(
            busy, 409, "idempotency-key-in-flight", retryable=True, safe_new_key=False, wait=ONE
        )
        reused()
    reused()
    assert shop.books.payments(order) == 1


# Users.


@plain
def test_a_new_session_at_an_async_view(shop: Shop) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    first = client.pay("async", order, key)
    client.log_in()
    assert client.pay("async", order, key).body == first.body
    assert shop.books.payments(order) == 1


@opposites
def test_an_anonymous_client_never_gets_the_replay_of_a_user(shop: Shop) -> None:
    order, key = new_order(), new_key()
    first = shop.client().pay("function", order, key)
    anonymous = shop.client().without_name()
    for _ in range(2):
        answer = anonymous.pay("function", order, key)
        problem(answer, 400, "idempotency-key-unscoped", retryable=False, safe_new_key=True)
        assert answer.body != first.body
    assert shop.books.payments(order) == 1


@opposites
def test_csrf_protection_runs_before_a_replay(shop: Shop) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    assert client.pay("function", order, key).status == 201
    forged = client.pay("function", order, key, headers={"X-CSRFToken": "forged"})
    assert (forged.status, forged.replayed) == (403, None)
    assert b'"payment"' not in forged.body


# Locks of resources.


@opposites
@pytest.mark.parametrize("kind", ["locked"])
def test_a_replay_does_not_wait_for_a_busy_resource(shop: Shop, kind: str) -> None:
    client, order, done, key = shop.client(), new_order(), new_key(), new_key()
    first = client.pay(kind, order, done)
    assert first.status == 201, shop.site.log
    with shop.waiting(client, "only-locked", order, None):
        replay = client.pay(kind, order, done)
        assert (replay.status, replay.replayed, replay.body) == (201, True, first.body)
        busy = client.pay(kind, order, key)
        problem(busy, 423, "resource-locked", retryable=True, safe_new_key=None, wait=TTL)
        assert not [name for name in shop.locks("redlock") if "idempotency" in name]
    # The key of a request that found the resource busy is unused.
    answer = client.pay(kind, order, key)
    assert (answer.status, answer.replayed) == (201, False), shop.site.log
    assert shop.books.payments(order) == 3


@opposites
def test_a_resource_lock_that_is_lost_rolls_everything_back(shop: Shop) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    with shop.waiting(client, "locked-short", order, key) as first:
        for master in shop.masters:
            with master.client() as redis:
                # The lock of another client, as far as the request can know.
                redis.set(f"short:lock:order:{order}", "another-client", px=60_000)
        until(lambda: lost_in(shop, order), "a lost lock")
        problem(first.answer, 503, "lock-lost", retryable=True, safe_new_key=None, wait=ONE)
    assert shop.books.payments(order) == 0
    for master in shop.masters:
        with master.client() as redis:
            redis.delete(f"short:lock:order:{order}")
    assert client.pay("locked-short", order, key).replayed is False
    assert shop.books.payments(order) == 1


def lost_in(shop: Shop, order: int) -> bool:
    """Return whether the site has logged that the lock of an order is lost."""
    return any("lost" in line and f"order:{order}" in line for line in shop.site.log.splitlines())


# Secrets.


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
