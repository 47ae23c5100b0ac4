"""A payment that is requested again is one payment, whichever process or master dies."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.conf.global_settings import DATA_UPLOAD_MAX_MEMORY_SIZE

from redlock_django.testing.masters import LocalMaster, local_masters
from tests.live.site.clients import JSON, Client, all_at_once, new_key, new_order
from tests.live.site.serving import Answer, Site
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]

# Every pair of server, transaction and database is covered.
SITES = [
    "wsgi-atomic-postgres",
    "wsgi-plain-sqlite",
    "asgi-atomic-sqlite",
    "asgi-plain-postgres",
]


def over(*by_day: str, sites: list[str] = SITES) -> pytest.MarkDecorator:
    """Return the sites for a test: these by day, and the others every night."""
    nightly = pytest.mark.nightly
    params = [pytest.param(name, marks=[] if name in by_day else [nightly]) for name in sites]
    return pytest.mark.parametrize("site", params, indirect=True)


opposites = over(SITES[0], SITES[3])  # both servers, with and without transactions
plain = over(SITES[3], sites=SITES[1::2])


@pytest.fixture(params=["postgres", pytest.param("sqlite", marks=pytest.mark.nightly)])
def two_sites(request: pytest.FixtureRequest, sites: Callable[[str], Site]) -> list[Site]:
    """Two servers with two processes each, and one database."""
    return [sites(name) for name in SITES if name.endswith(request.param)]


@pytest.mark.parametrize("kind", ["function", "wait"])
def test_fifty_requests_at_once_run_the_view_once(two_sites: list[Site], kind: str) -> None:
    one, other = two_sites
    client, order, key = Client(one), new_order(), new_key()
    answers = all_at_once([client, client.at(other)], kind, order, key, 50)
    waits = kind == "wait"
    one_is_done(answers, waits=waits)
    assert one.tables.payments(order) == 1
    assert client.pay(kind, order, key).replayed is True


@plain
def test_fifty_requests_at_once_run_once_around_the_view(site: Site) -> None:
    client, order, key = Client(site), new_order(), new_key()
    one_is_done(all_at_once([client], "async", order, key, 50), waits=False)
    assert site.tables.payments(order) == 1


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
def test_processes_that_are_killed(site: Site, subtests: pytest.Subtests) -> None:
    """All are killed before the retries, so that their leases run out together."""
    client = Client(site)
    asked = {moment: (new_order(), new_key()) for moment in ATOMIC}
    for moment, (order, key) in asked.items():
        client.is_left_alone("short", order, key, moment)
        assert site.tables.payments(order) == ATOMIC[moment], moment
    for moment, (order, key) in asked.items():
        with subtests.test(moment):
            answer = retry(client, "short", order, key)
            assert (answer.status, answer.replayed) == (201, ATOMIC[moment]), site.log
            assert site.tables.payments(order) == 1
            assert answer.json == {"payment": payment(site, order)}


@pytest.mark.attack
@plain
def test_processes_that_are_killed_in_an_async_view(site: Site, subtests: pytest.Subtests) -> None:
    client = Client(site)
    asked = {(kind, moment): (new_order(), new_key()) for kind, moment in ASYNC}
    for (kind, moment), (order, key) in asked.items():
        client.is_left_alone(kind, order, key, moment)
    for (kind, moment), (order, key) in asked.items():
        code, payments = ASYNC[kind, moment]
        with subtests.test(f"{kind} {moment}"):
            for _ in range(2):
                answer = retry(client, kind, order, key)
                assert answer.code == code, site.log
                assert (answer.status, answer.replayed) == ((409, None) if code else (201, True))
                assert site.tables.payments(order) == payments


def payment(site: Site, order: int) -> int:
    """Return the number of the only payment for an order."""
    [(number,)] = site.tables.rows(f'SELECT id FROM payment WHERE "order" = {order}')
    return int(number)


# Clients that disconnect.


@opposites
def test_a_client_that_goes_away_finds_the_result(site: Site) -> None:
    leave_and_retry(site, "function")


@pytest.mark.attack
@pytest.mark.parametrize("site", ["asgi-plain-postgres"], indirect=True)
def test_an_async_view_runs_to_its_end_without_its_client(site: Site) -> None:
    leave_and_retry(site, "async")


def leave_and_retry(site: Site, kind: str) -> None:
    """Disconnect while the view runs; the retry gets its response."""
    client, order, key = Client(site), new_order(), new_key()
    entered, opened = site.gate(order)
    with client.leaving(kind, order, key):
        until(entered.exists, f"the view: {site.log}")
    assert client.pay(kind, order, key).code == "idempotency-key-in-flight"
    opened.touch()
    answer = retry(client, kind, order, key)
    assert (answer.status, answer.replayed) == (201, True), site.log
    assert site.tables.payments(order) == 1


# Views that outlive their lease.


@opposites
def test_when_the_lease_is_over_the_row_decides(site: Site) -> None:
    client, order, key = Client(site), new_order(), new_key()
    with client.waiting("forgotten", order, key) as first:
        # Not renewed, so that the second request gets the lock while the first one runs.
        until(lambda: not site.locks("forgotten"), "the end of the lease")
        with client.asked("forgotten", order, key) as second:
            until(
                lambda: site.locks("forgotten"),
                f"the second request: {site.log}",
            )
            assert first.answer.status == 201, site.log
        assert (second.answer.status, second.answer.replayed) == (201, True), site.log
        assert second.answer.body == first.answer.body
    assert site.tables.payments(order) == 1


# Requests that real servers pass on in their own way.


@over("asgi-plain-postgres", sites=SITES[2:])
def test_a_body_of_unknown_length_is_too_large_as_well(site: Site) -> None:
    """Only ASGI servers accept a body of unknown length."""
    client, order, key = Client(site), new_order(), new_key()

    def chunks(size: int) -> Iterator[bytes]:
        yield b"x" * (size // 2)
        yield b"x" * (size - size // 2)

    refused = client.pay("body", order, key, chunks(DATA_UPLOAD_MAX_MEMORY_SIZE + 1))
    assert (refused.status, refused.code) == (413, "idempotency-body-too-large")
    assert site.tables.payments(order) == 0
    taken = client.pay("body", order, key, chunks(DATA_UPLOAD_MAX_MEMORY_SIZE))
    assert (taken.status, taken.json) == (201, {"bytes": DATA_UPLOAD_MAX_MEMORY_SIZE})


@pytest.mark.parametrize("site", ["wsgi-atomic-postgres"], indirect=True)
def test_half_a_body_burns_no_key(site: Site) -> None:
    """The server passes the first half of a body on when the client disconnects after it."""
    client, order, key = Client(site), new_order(), new_key()
    with site.connected() as connection:
        connection.putrequest("POST", f"/pay/function/{order}/")
        sent = {"Content-Type": "application/json", "Idempotency-Key": key, **client.headers}
        for name, value in {**sent, "Content-Length": str(len(JSON))}.items():
            connection.putheader(name, value)
        connection.endheaders(JSON[:-3])
        connection.sock.shutdown(socket.SHUT_WR)
        response = connection.getresponse()
        assert (response.status, b"incomplete-body" in response.read()) == (400, True)
    assert site.tables.payments(order) == 0
    answer = client.pay("function", order, key)
    assert (answer.status, answer.replayed) == (201, False), site.log


@opposites
def test_a_key_that_is_sent_twice(site: Site) -> None:
    client, order, key = Client(site), new_order(), new_key()
    with site.connected() as connection:
        connection.putrequest("POST", f"/pay/function/{order}/")
        for name, value in client.headers.items():
            connection.putheader(name, value)
        for header in (f'"{key}"', f'"{new_key()}"'):
            connection.putheader("Idempotency-Key", header)
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        response = connection.getresponse()
        # gunicorn refuses by itself what uvicorn passes on unchanged.
        answer = Answer(response.status, response.headers, response.read())
    assert (answer.status, site.tables.payments(order)) == (400, 0), answer
    assert answer.code == "idempotency-key-invalid"


@opposites
def test_nothing_of_a_request_is_given_away(site: Site) -> None:
    canary = f"canary{secrets.token_hex(8)}"
    client, seen = Client(site, "dora"), dict[str, Any]()
    body = f'{{"card": "{canary}"}}'.encode()

    def look() -> None:
        for server in site.masters:
            with server.client() as redis:
                names = [name.decode() for name in redis.scan_iter(count=1000)]
                seen[server.name + str(len(seen))] = " ".join(names)
                # A value that is not a string is not a key.
                seen["values" + str(len(seen))] = repr(redis.mget(names) if names else [])

    for kind in ("function", "locked"):
        order, key = new_order(), f"{canary}-{kind}"
        with client.waiting(kind, order, key):
            assert client.pay(kind, order, key).code == "idempotency-key-in-flight"
            look()
        assert client.pay(kind, order, key).replayed is True, site.log
        assert client.pay(kind, order, key, body).status == 422
        for do in ("raise", "fail at commit", "500", "404"):
            client.pay(kind, new_order(), f"{canary}{new_key()}", body, do=do)
        client.pay(kind, new_order(), f"{canary} {new_key()}", body)
        look()
    client.is_left_alone("short", new_order(), f"{canary}-dead", "in the view")
    columns = "key_hash, fingerprint, method, path"
    seen["rows"] = repr(site.tables.rows(f"SELECT {columns} FROM redlock_django_idempotencyrecord"))
    seen["log"] = site.log
    assert "Internal Server Error" in seen["log"]
    assert any(":lock:idempotency~" in text for text in seen.values())
    session = client.headers["Cookie"].partition("sessionid=")[2].partition(";")[0]
    token = client.headers["Authorization"].partition(" ")[2]
    assert len(session) > 20
    assert len(token) > 20
    for secret in (canary, session, token, client.csrf):
        assert not [where for where, text in seen.items() if secret in text]


# Masters that are down before a request runs, and while it does.

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
