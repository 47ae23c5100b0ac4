"""Bodies of requests of unknown length, and of which half arrives."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from django.conf.global_settings import DATA_UPLOAD_MAX_MEMORY_SIZE

from tests.live.payments.paying import JSON, Shop, new_key, new_order
from tests.live.test_idempotency_once import SHOPS, over

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]


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
