"""Masters that are down before a request runs, and while it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest

from redlock_django.testing.masters import LocalMaster, local_masters
from tests.live.site.clients import Client, new_key, new_order
from tests.live.site.serving import Answer, Site
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]


SITES = ["wsgi-atomic-postgres", "wsgi-plain-sqlite", "asgi-atomic-sqlite", "asgi-plain-postgres"]
NIGHTLY = {name: [pytest.mark.nightly] if name.endswith("sqlite") else [] for name in SITES}


@pytest.fixture(scope="module", params=[pytest.param(name, marks=NIGHTLY[name]) for name in SITES])
def frail_site(
    request: pytest.FixtureRequest,
    open_site: Callable[[str, list[LocalMaster]], AbstractContextManager[Site]],
) -> Iterator[Site]:
    """Run one site at a time, on masters that only its tests break."""
    with local_masters(5) as masters, open_site(request.param, masters) as running:
        yield running


@pytest.fixture
def frail(frail_site: Site) -> Iterator[Site]:
    """Return a site whose masters the test may break: afterwards they run, and take payments."""
    yield frail_site
    for master in frail_site.masters:
        master.resume()
        master.start()
    all_processes_pay(frail_site)


def all_processes_pay(site: Site) -> None:
    """Send requests at the same time, so that all processes of the site are asked."""
    client = Client(site)
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(
            lambda _: in_the_end(client, "function", new_order(), new_key()), range(8)
        )
        assert {answer.status for answer in answers} == {201}, site.log


def all_processes_are_linked(site: Site) -> bool:
    """Send requests, and return whether both processes have a link to each master by now."""
    all_processes_pay(site)
    links = set()
    for master in site.masters:
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


# The first of each site: after another test, a process may still be without a third master.
def test_a_minority_of_masters_that_is_down_changes_nothing(frail: Site) -> None:
    client, order, key = Client(frail), new_order(), new_key()
    until(lambda: all_processes_are_linked(frail), "a link of each process to each master")
    all_processes_pay(frail)  # when the newest links have joined
    frail.masters[0].kill()
    frail.masters[1].pause()
    with client.waiting("function", order, key) as first:
        busy = client.pay("function", order, key)
        assert (busy.status, busy.code) == (409, "idempotency-key-in-flight"), frail.log
    assert client.pay("function", order, key).body == first.answer.body
    assert frail.tables.payments(order) == 1


def test_masters_that_are_down_refuse_keys_and_allow_replays(frail: Site) -> None:
    client, order, done = Client(frail), new_order(), new_key()
    first = client.pay("function", order, done)
    assert first.status == 201, frail.log
    for master in frail.masters[:3]:
        master.kill()
    unpaid, key = new_order(), new_key()
    assert unavailable(client.pay("function", unpaid, key)), frail.log
    assert client.pay("only-locked", unpaid, None).code == "lock-unavailable"
    assert frail.tables.payments(unpaid) == 0
    # A replay needs no lock, and neither does a request without a key.
    replay = client.pay("function", order, done)
    assert (replay.replayed, replay.body) == (True, first.body)
    assert client.pay("function", order, None).status == 201
    for master in frail.masters[:3]:
        master.start()
    answer = in_the_end(client, "function", unpaid, key)
    assert (answer.status, answer.replayed) == (201, False), frail.log
    assert frail.tables.payments(unpaid) == 1


@pytest.mark.parametrize(
    "frail_site", [pytest.param(name, marks=NIGHTLY[name]) for name in SITES], indirect=True
)
def test_masters_that_go_down_meanwhile_leave_the_first_request(frail: Site) -> None:
    client, order, key = Client(frail), new_order(), new_key()
    before = len(frail.log)
    with client.waiting("short", order, key) as first:
        for master in frail.masters[:3]:
            master.pause()
        # The first request cannot renew its lease, and no other one gets a lease.
        until(lambda: "lost" in frail.log[before:], "a lost lease")
        assert unavailable(client.pay("short", order, key)), frail.log
        assert first.answer.status == 201, frail.log
        assert first.answer.replayed is False
        # It is recorded, so no lock is needed any more.
        replay = client.pay("short", order, key)
        assert (replay.status, replay.replayed) == (201, True), frail.log
    for master in frail.masters[:3]:
        master.resume()
    assert in_the_end(client, "short", order, key).body == first.answer.body
    assert frail.tables.payments(order) == 1
