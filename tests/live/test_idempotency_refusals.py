"""A key that is sent twice to real servers, and that no secret is revealed."""

from __future__ import annotations

import http.client
import secrets
from typing import Any

import pytest

from tests.live.payments.paying import Answer, Shop, new_key, new_order
from tests.live.test_idempotency_once import opposites

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]


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
