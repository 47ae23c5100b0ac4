"""Bodies of requests and responses: large, in parts, in a stream."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.conf.global_settings import DATA_UPLOAD_MAX_MEMORY_SIZE

from tests.live.payments.paying import JSON, Answer, Client, Shop, new_key, new_order
from tests.live.test_idempotency_once import SHOPS, opposites, over

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]

MEGABYTE = 1024 * 1024


@opposites
@pytest.mark.parametrize(("kind", "size"), [("stream", None), ("large", 2 * MEGABYTE)])
def test_a_request_whose_response_was_not_stored_does_not_run_again(
    shop: Shop, kind: str, size: int | None
) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    first = client.pay(kind, order, key)
    assert (first.status, first.replayed) == (201, False), shop.site.log
    assert first.body.startswith(b"paid ") if size is None else len(first.body) == size
    for _ in range(2):
        again = client.pay(kind, order, key)
        assert (again.status, again.code) == (409, "idempotency-result-unavailable")
    assert client.pay(kind, order, key, b"{}").status == 422
    assert shop.books.payments(order) == 1


def parts(boundary: str, csrf: str, *files: tuple[str, str, bytes], note: str = "") -> bytes:
    """Write a form as a browser does: a field, and files by name, file name and content."""
    lines = [f"--{boundary}\r\n", 'Content-Disposition: form-data; name="note"\r\n\r\n', note]
    lines += [f"\r\n--{boundary}\r\n", 'Content-Disposition: form-data; name="csrfmiddlewaretoken"']
    lines += [f"\r\n\r\n{csrf}"]
    written = "".join(lines).encode()
    for name, file_name, content in files:
        head = f'Content-Disposition: form-data; name="{name}"; filename="{file_name}"\r\n'
        head += "Content-Type: application/octet-stream\r\n\r\n"
        written += f"\r\n--{boundary}\r\n{head}".encode() + content
    return written + f"\r\n--{boundary}--\r\n".encode()


def send(
    client: Client,
    order: int,
    key: str,
    boundary: str,
    *files: tuple[str, str, bytes],
    note: str = "a note",
) -> Answer:
    """Send a form whose CSRF token is in a field, so that CSRF protection has to read the body."""
    return client.pay(
        "upload",
        order,
        key,
        parts(boundary, client.csrf, *files, note=note),
        content_type=f"multipart/form-data; boundary={boundary}",
        headers={"X-CSRFToken": ""},
    )


@opposites
def test_a_form_is_the_same_by_its_parts(shop: Shop) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    content = bytes(range(256)) * (6 * MEGABYTE // 256)
    first = send(client, order, key, "one", ("scan", "a.bin", content))
    assert first.status == 201, shop.site.log
    again = send(client, order, key, "another-boundary", ("scan", "a.bin", content))
    assert (again.status, again.replayed, again.body) == (201, True, first.body)
    # Each form that is shown has a different CSRF token.
    client.log_in()
    assert send(client, order, key, "three", ("scan", "a.bin", content)).replayed is True
    others = [
        send(client, order, key, "one", ("scan", "a.bin", content[:-1] + b"!")),
        send(client, order, key, "one", ("scan", "b.bin", content)),
        send(client, order, key, "one", ("other", "a.bin", content)),
        send(client, order, key, "one", ("scan", "a.bin", content), ("scan", "a.bin", content)),
        send(client, order, key, "one"),
        send(client, order, key, "one", ("scan", "a.bin", content), note="another note"),
    ]
    assert {(answer.status, answer.code) for answer in others} == {(422, "idempotency-key-reused")}
    assert shop.books.payments(order) == 1


@opposites
def test_the_view_is_given_the_whole_upload(shop: Shop) -> None:
    client, order = shop.client(), new_order()
    content = bytes(reversed(range(256))) * (6 * MEGABYTE // 256)
    answer = send(client, order, new_key(), "b", ("scan", "a.bin", content), note="ä\r\nb")
    assert answer.json == {
        "note": "ä\r\nb",
        "scan": f"a.bin {hashlib.sha256(content).hexdigest()}",
    }


def submit(client: Client, kind: str, order: int, key: str, note: str = "a") -> Answer:
    """Send a plain HTML form, whose key is in a hidden field."""
    form = f"idempotency_key={key}&note={note}&csrfmiddlewaretoken={client.csrf}"
    return client.pay(
        kind,
        order,
        None,
        form.encode(),
        content_type="application/x-www-form-urlencoded",
        headers={"X-CSRFToken": ""},
    )


@opposites
def test_a_form_that_is_sent_many_times_ends_everywhere_on_the_same_page(shop: Shop) -> None:
    client, order, key = shop.client(), new_order(), new_key()
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: submit(client, "function", order, key), range(12)))
    assert {answer.status for answer in answers} == {201}, shop.site.log
    assert len({answer.body for answer in answers}) == 1
    assert shop.books.payments(order) == 1


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
