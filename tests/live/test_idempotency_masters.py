"""Masters that are down before a request runs, and while it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest

from redlock_django.testing.masters import LocalMaster, local_masters
from tests.live.payments.paying import Answer, Client, Shop, new_key, new_order
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]


SHOPS = ["wsgi-atomic-postgres", "wsgi-plain-sqlite", "asgi-atomic-sqlite", "asgi-plain-postgres"]
NIGHTLY = {name: [pytest.mark.nightly] if name.endswith("sqlite") else [] for name in SHOPS}


@pytest.fixture(scope="module", params=[pytest.param(name, marks=NIGHTLY[name]) for name in SHOPS])
def frail_shop(
    request: pytest.FixtureRequest,
    open_shop: Callable[[str, list[LocalMaster]], AbstractContextManager[Shop]],
) -> Iterator[Shop]:
    """Run one shop at a time, on masters that only its tests break."""
    with local_masters(5) as masters, open_shop(request.param, masters) as running:
        yield running


@pytest.fixture
def frail(frail_shop: Shop) -> Iterator[Shop]:
    """Return a shop whose masters the test may break: afterwards they run, and the shop is paid."""
    yield frail_shop
    for master in frail_shop.masters:
        master.resume()
        master.start()
    all_processes_pay(frail_shop)


def all_processes_pay(shop: Shop) -> None:
    """Send requests at the same time, so that all processes of the shop are asked."""
    client = shop.client()
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(
            lambda _: in_the_end(client, "function", new_order(), new_key()), range(8)
        )
        assert {answer.status for answer in answers} == {201}, shop.site.log


def all_processes_are_linked(shop: Shop) -> bool:
    """Send requests, and return whether both processes have a link to each master by now."""
    all_processes_pay(shop)
    links = set()
    for master in shop.masters:
        with master.client() as client:
            links.add(len(client.client_list()) - 1)
    return len(links) == 1 and links.pop() >= 2


def unavailable(answer: Answer) -> bool:
    """Return whether it is the complete answer for a missing quorum."""
    if answer.status != 503:
        return False
    assert answer.code == "idempotency-unavailable"
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.headers["Cache-Control"] == "no-store"
    assert (answer.json["retryable"], answer.json["safe_new_key"]) == (True, False)
    return True


def in_the_end(client: Client, kind: str, order: int, key: str) -> Answer:
    """Retry until the masters are back."""
    answers: list[Answer] = []

    def asked() -> bool:
        answers.append(client.pay(kind, order, key))
        return not unavailable(answers[-1])

    until(asked, "a quorum")
    return answers[-1]


# The first of each shop: after another test, a process may still be without a third master.
def test_a_minority_of_masters_that_is_down_changes_nothing(frail: Shop) -> None:
    client, order, key = frail.client(), new_order(), new_key()
    until(lambda: all_processes_are_linked(frail), "a link of each process to each master")
    all_processes_pay(frail)  # when the newest links have joined
    frail.masters[0].kill()
    frail.masters[1].pause()
    with frail.waiting(client, "function", order, key) as first:
        busy = client.pay("function", order, key)
        assert (busy.status, busy.code) == (409, "idempotency-key-in-flight"), frail.site.log
    assert client.pay("function", order, key).body == first.answer.body
    assert frail.books.payments(order) == 1


def test_masters_that_are_down_refuse_keys_and_allow_replays(frail: Shop) -> None:
    client, order, done = frail.client(), new_order(), new_key()
    first = client.pay("function", order, done)
    assert first.status == 201, frail.site.log
    for master in frail.masters[:3]:
        master.kill()
    unpaid, key = new_order(), new_key()
    assert unavailable(client.pay("function", unpaid, key)), frail.site.log
    assert client.pay("only-locked", unpaid, None).code == "lock-unavailable"
    assert frail.books.payments(unpaid) == 0
    # A replay needs no lock, and neither does a request without a key.
    replay = client.pay("function", order, done)
    assert (replay.replayed, replay.body) == (True, first.body)
    assert client.pay("function", order, None).status == 201
    for master in frail.masters[:3]:
        master.start()
    answer = in_the_end(client, "function", unpaid, key)
    assert (answer.status, answer.replayed) == (201, False), frail.site.log
    assert frail.books.payments(unpaid) == 1


@pytest.mark.parametrize(
    "frail_shop", [pytest.param(name, marks=NIGHTLY[name]) for name in SHOPS], indirect=True
)
def test_masters_that_go_down_meanwhile_leave_the_first_request(frail: Shop) -> None:
    client, order, key = frail.client(), new_order(), new_key()
    before = len(frail.site.log)
    with frail.waiting(client, "short", order, key) as first:
        for master in frail.masters[:3]:
            master.pause()
        # The first request cannot renew its lease, and no other one gets a lease.
        until(lambda: "lost" in frail.site.log[before:], "a lost lease")
        assert unavailable(client.pay("short", order, key)), frail.site.log
        assert first.answer.status == 201, frail.site.log
        assert first.answer.replayed is False
        # It is recorded, so no lock is needed any more.
        replay = client.pay("short", order, key)
        assert (replay.status, replay.replayed) == (201, True), frail.site.log
    for master in frail.masters[:3]:
        master.resume()
    assert in_the_end(client, "short", order, key).body == first.answer.body
    assert frail.books.payments(order) == 1
