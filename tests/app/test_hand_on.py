"""A lock that is handed on: `held.transfer()` in one place, `resume_lock(ticket)` in another.

That one client takes it, with its fence and its times, in each store: `tests/contract`.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.core.management import CommandError, call_command
from django.db import transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from django.views.debug import SafeExceptionReporterFilter
from pytest_django import Settings

from redlock_django import (
    AlreadyHeld,
    BadResource,
    BadTicket,
    InvalidRedlock,
    LockLost,
    NotHeld,
    QuorumUnreachable,
    ResourceLocked,
    TicketUsed,
    hold,
    idempotent,
    leader,
    lock,
    lock_resource,
    resource,
    resume_lock,
    signals,
)
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.engine.protocol.commands import Heal
from redlock_django.engine.validity import LeaseState, RedlockLease
from redlock_django.locking.renewal import renewal_service
from redlock_django.operate.inspection import who_holds
from testproject.shop.models import Order
from tests.app.conftest import (
    FIVE,
    LOCK_MIDDLEWARE,
    MEMORY,
    Configure,
    Urls,
    elsewhere,
    memory_backend,
    order,
    without_quorum,
)
from tests.inspecting import look
from tests.losses import ends_lost

MASTERS = FIVE[:3]
NAME = "order:1"
pytestmark = pytest.mark.usefixtures("three_masters")


def given(name: str = NAME, ttl: float | None = None, **arguments: Any) -> str:
    """Return the ticket of a lock that was handed on."""
    with lock(name, **arguments) as held:
        return held.transfer(ttl)


def refused() -> bool:
    """Return whether another client is refused."""
    try:
        elsewhere(lambda: lock(NAME).acquire().release())
    except ResourceLocked:
        return True
    return False


def take(ticket: str) -> None:
    """Take the lock of a ticket, and release it."""
    with resume_lock(ticket) as held:
        held.ensure_held()


# The giver.


def test_a_task_goes_on_with_the_lock_of_a_request() -> None:
    with lock(NAME) as held:
        fence, fingerprint = held.fence, held.fingerprint
        ticket = held.transfer(ttl=60)

    def task() -> None:
        with resume_lock(ticket) as taken:
            taken.ensure_held()
            assert taken.fence == fence
            assert taken.resources == (NAME,)
            assert taken.givers == (fingerprint,)
            assert taken.fingerprint not in taken.givers
            assert refused()

    elsewhere(task)
    assert not refused()


def test_the_giver_does_not_hold_any_more() -> None:
    with lock(NAME) as held:
        held.transfer(ttl=60)
        assert held.handed_on
        assert not held.locked
        assert held.remaining() == 0.0
        assert repr(held) == f"<Lock '{NAME}' using 'default', handed on>"
        for call in (held.ensure_held, held.verify, held.extend, held.transfer):
            with pytest.raises(NotHeld, match=r"transfer.. has handed this lock on: the client"):
                call()
        assert held.release() is False
        assert refused()
    assert refused()


def test_the_renewal_of_the_giver_stops_and_max_hold_with_it() -> None:
    held = lock(NAME, renew=True).acquire()
    ticket = held.transfer(ttl=30)
    held_lease = held._require_lease()
    assert held_lease.due_ttl() is None
    MemoryBackend.advance(29)
    with resume_lock(ticket) as taken:
        assert taken.remaining() > 9


def test_an_extension_under_way_does_not_end_the_lock_that_is_handed_on() -> None:
    held = lock(NAME).acquire()
    held_lease = held._require_lease()
    before = held_lease.lease
    with held_lease.handing_on():
        assert held_lease.due_ttl() is None
        assert held_lease.next_check() > memory_backend().clock()
        held_lease.apply_extension(LeaseState.LOST, before)
        assert held.locked
    ticket = held.transfer()
    held_lease.apply_extension(LeaseState.RENEWED, before)
    assert refused()
    take(ticket)


@pytest.mark.parametrize("way", ["extend", "renewal"])
def test_an_extension_that_overlaps_with_a_failed_hand_on_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It may reach the masters between the hand-on and its undo, over other links."""
    held = lock(NAME, renew=True).acquire()
    held_lease = held._require_lease()
    extend = memory_backend().extend

    def overlapping(lease: Any, ttl: float) -> Any:
        monkeypatch.setattr(memory_backend(), "extend", extend)
        with without_quorum(), pytest.raises(QuorumUnreachable):
            held.transfer()
        return LeaseState.LOST, lease

    monkeypatch.setattr(memory_backend(), "extend", overlapping)
    MemoryBackend.advance(5)
    if way == "extend":
        held.extend()
    else:
        renewal_service._check_due([held_lease])
    held.ensure_held()
    assert held.release()


@pytest.mark.parametrize("is_extended", [True, False], ids=["extended", "not extended"])
def test_a_round_that_outlasts_the_lease_hands_it_on_if_it_was_extended_meanwhile(
    monkeypatch: pytest.MonkeyPatch, is_extended: bool
) -> None:
    """Another thread extends the lock after the giver has read until when it is held."""
    held = lock(NAME, ttl=10).acquire()
    acquire, answer, rounds = MemoryBackend.acquire, MemoryBackend._answer, list[Any]()

    def stalled(self: MemoryBackend, *arguments: Any) -> None:
        answer(self, *arguments)
        rounds.append(arguments)
        if len(rounds) == 1:
            MemoryBackend.advance(5)

    def slow(self: MemoryBackend, *arguments: Any) -> Any:
        held_lease = held._held_lease
        if is_extended and not rounds and held_lease is not None:
            held_lease.extend(10)
        monkeypatch.setattr(MemoryBackend, "_answer", stalled)
        return acquire(self, *arguments)

    monkeypatch.setattr(MemoryBackend, "acquire", slow)
    MemoryBackend.advance(6)
    if is_extended:
        take(held.transfer())
    else:
        with pytest.raises(LockLost, match="before it was handed on"):
            held.transfer()
    assert not look(memory_backend(), [NAME]).locks, "nothing is left"


def test_an_extension_that_ends_during_a_transfer_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It sets the lock on a master that had forgotten it, with the token of the giver."""
    held = lock(NAME).acquire()
    held_lease = held._require_lease()
    key, keyspace = memory_backend().deployment.lock(NAME), memory_backend().masters[2].keyspace
    keyspace.strings.pop(key)
    held_lease.extend(10)  # learns that the master has forgotten it
    before, acquire = held_lease.lease, MemoryBackend.acquire
    assert isinstance(before, RedlockLease)

    def slow(self: MemoryBackend, *arguments: Any) -> Any:
        handed = acquire(self, *arguments)
        heal = Heal(self.deployment, (NAME,), before.value, 10.0, before.fences)
        self.masters[2].say(heal, 0, *self._markers[2])
        held_lease.apply_extension(LeaseState.RENEWED, replace(before, reached=frozenset({2})))
        return handed

    monkeypatch.setattr(MemoryBackend, "acquire", slow)
    ticket = held.transfer()
    assert keyspace.get(key) is None
    take(ticket)


def test_the_giver_gets_the_lock_back_if_too_few_masters_answer(hear: Callable[..., Any]) -> None:
    lost = hear(signals.lock_lost)
    with lock(NAME) as held:
        with without_quorum():
            with pytest.raises(QuorumUnreachable):
                held.transfer()
            held.ensure_held()
        held.extend()
        held.transfer()
    assert not lost


def test_a_lost_lock_is_not_handed_on() -> None:
    with ends_lost(), lock(NAME) as held:
        MemoryBackend.advance(11)
        with pytest.raises(LockLost):
            held.transfer()
    held = lock(NAME).acquire()
    for master in memory_backend().masters:
        master.keyspace.strings.pop(memory_backend().deployment.lock(NAME))
    with pytest.raises(LockLost, match="lost before it was handed on"):
        held.transfer()
    assert not refused()
    with pytest.raises(NotHeld):
        lock(NAME).transfer()


def test_the_same_lock_object_can_be_acquired_again() -> None:
    held = lock(NAME).acquire()
    ticket = held.transfer()
    with pytest.raises(ResourceLocked):
        held.acquire()
    take(ticket)
    assert held.acquire().locked
    assert not held.handed_on
    held.release()


def test_the_ttl_is_checked() -> None:
    with lock(NAME) as held:
        with pytest.raises(ValueError, match="ttl is 61 s and MAX_TTL is 60 s"):
            held.transfer(ttl=61)
        with pytest.raises(ValueError, match="must be a number"):
            held.transfer(ttl="60")  # type: ignore[arg-type]
        held.ensure_held()
        held.transfer()
    assert 55 < (look(memory_backend(), [NAME]).locks[0].ttl or 0) <= 60


def test_the_hold_of_the_giver_is_reported_as_released(
    caplog: pytest.LogCaptureFixture, hear: Callable[..., Any]
) -> None:
    seen = hear(signals.lock_released)
    with caplog.at_level(logging.DEBUG, "redlock_django"), lock(NAME) as held:
        giver = held.fingerprint
        ticket = held.transfer()
    assert [(event["fingerprint"], event["freed"]) for event in seen] == [(giver, None)]
    assert f"{NAME}: handed on by {giver}" in caplog.text
    assert ticket not in caplog.text


# The taker.


@pytest.mark.attack
def test_a_ticket_is_good_for_one_client() -> None:
    ticket = given()
    with resume_lock(ticket) as held:
        with pytest.raises(TicketUsed, match=f"{NAME}: this ticket was used before"):
            elsewhere(lambda: resume_lock(ticket).acquire())
        with pytest.raises(TicketUsed):
            resume_lock(ticket).acquire()
        held.ensure_held()
    with pytest.raises(TicketUsed) as used:
        resume_lock(ticket).acquire()
    assert isinstance(used.value, NotHeld)
    assert used.value.resource == NAME
    assert isinstance(pickle.loads(pickle.dumps(used.value)), TicketUsed)


def test_a_taker_without_a_quorum_can_try_again(memory: Configure) -> None:
    memory(MASTERS=MASTERS, ON_UNAVAILABLE="proceed")
    ticket = given()
    with without_quorum(), pytest.raises(QuorumUnreachable):
        resume_lock(ticket).acquire()
    take(ticket)


def test_a_task_takes_the_lock_on_its_loop_and_hands_it_on_again() -> None:
    async def both() -> str:
        async with lock(NAME) as held:
            with pytest.raises(SynchronousOnlyOperation):
                held.transfer()
            first = await held.atransfer(ttl=60)
        async with resume_lock(first) as taken:
            taken.ensure_held()
            fence = taken.fence
            second = await taken.atransfer()
        with pytest.raises(TicketUsed):
            await resume_lock(first).aacquire()
        last = await resume_lock(second).aacquire()
        assert last.fence == fence
        assert len(last.givers) == 2
        return await last.atransfer()

    ticket = asyncio.run(both())
    take(ticket)


def test_the_arguments_of_a_taker_are_those_of_a_lock() -> None:
    ticket = given()
    with pytest.raises(ValueError, match="ttl is 61 s"):
        resume_lock(ticket, ttl=61)
    held = resume_lock(ticket, ttl=20, renew=False, holder={"user": "7"}).acquire()
    assert 19 < held.remaining() <= 20
    (seen,) = who_holds(NAME).locks
    assert seen.holder["user"] == "7"
    assert not seen.handed_on
    held.release()


def test_several_names_of_another_alias(settings: Settings) -> None:
    settings.REDLOCK = {
        "default": {"BACKEND": MEMORY},
        "jobs": {"BACKEND": MEMORY, "MASTERS": MASTERS},
    }
    with lock("b", "a", using="jobs") as held:
        fences, ticket = held.fences, held.transfer()
    with resume_lock(ticket) as taken:
        assert (taken.fences, taken.using) == (fences, "jobs")


def test_a_task_that_holds_a_slot_resumes_no_other_slot_of_the_name() -> None:
    ticket = elsewhere(lambda: given("export", limit=3))

    async def resume() -> None:
        async with resume_lock(ticket):
            pass

    async def resume_in_a_slot() -> None:
        async with lock("export", limit=3):
            await resume()

    with lock("export", limit=2) as held:
        with pytest.raises(AlreadyHeld, match=r"another slot of it.*still good"):
            resume_lock(ticket).acquire()
        assert held.locked
    with pytest.raises(AlreadyHeld, match="another slot of it"):
        asyncio.run(resume_in_a_slot())
    asyncio.run(resume())


# What cannot be handed on.


def test_a_lock_that_others_share_is_not_handed_on() -> None:
    with lock(NAME) as outer:
        with lock(NAME, reentrant=True) as inner:
            for one in (outer, inner):
                with pytest.raises(AlreadyHeld, match=r"another lock.. .* shares this lock"):
                    one.transfer()
        outer.ensure_held()
        outer.transfer()


def test_the_lock_of_a_decorator_is_handed_on_by_one_inside() -> None:
    tickets: list[str] = []

    @hold(NAME)
    def job() -> None:
        with lock(NAME, reentrant=True) as held:
            tickets.append(held.transfer())

    job()
    assert refused()
    take(tickets[0])


def test_a_leader_hands_nothing_on() -> None:
    with leader("scheduler") as term:
        with pytest.raises(InvalidRedlock, match=r"leader.'scheduler'. .* End the block"):
            term.transfer(ttl=60)
        term.ensure_held()


def test_a_store_that_cannot_hand_on_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryBackend, "hands_on", False)
    with lock(NAME) as held:
        with pytest.raises(InvalidRedlock, match=r"default.*cannot hand a lock on. Leave out"):
            held.transfer()
        held.ensure_held()


def test_a_lock_that_on_unavailable_left_out_is_not_handed_on(memory: Configure) -> None:
    memory(MASTERS=MASTERS, ON_UNAVAILABLE="proceed")
    said = "ON_UNAVAILABLE let the caller"
    with without_quorum(), lock(NAME) as held, pytest.raises(NotHeld, match=said):
        held.transfer()


# Tickets.


@pytest.mark.parametrize(
    ("ticket", "why"),
    [
        (None, "got NoneType that is none"),
        (7, "got int that is none"),
        (NAME, r"got a string that is none. With a name, write lock\(name\)"),
        ("redlock-ticket*", "changed, or signed with another key"),
        ("redlock-ticket*e30:x", "changed, or signed with another key"),
    ],
)
def test_what_is_no_ticket_is_refused(ticket: Any, why: str) -> None:
    with pytest.raises(BadTicket, match=why):
        resume_lock(ticket)


@pytest.mark.attack
def test_a_ticket_that_was_changed_is_refused() -> None:
    ticket = given()
    for changed in (ticket[:-1], ticket + "x", ticket.replace("e", "f", 1), ticket[:40]):
        with pytest.raises(BadTicket) as error:
            resume_lock(changed)
        assert changed not in str(error.value)
    take(ticket)


@pytest.mark.attack
def test_keys_can_be_rotated(settings: Settings) -> None:
    ticket, old = given(), settings.SECRET_KEY
    settings.SECRET_KEY = "new" * 20
    with pytest.raises(BadTicket, match="SECRET_KEY_FALLBACKS"):
        resume_lock(ticket)
    settings.SECRET_KEY_FALLBACKS = ["other" * 10, old]
    take(ticket)


@pytest.mark.attack
def test_a_ticket_of_another_deployment_is_refused(settings: Settings, memory: Configure) -> None:
    ticket = given()
    memory(MASTERS=MASTERS[:1])
    with pytest.raises(BadTicket, match=r"another deployment: REDLOCK.'default'. has other"):
        resume_lock(ticket)
    settings.REDLOCK = {"locks": {"BACKEND": MEMORY, "MASTERS": MASTERS}}
    with pytest.raises(BadTicket, match="alias 'default', which REDLOCK does not have here"):
        resume_lock(ticket)


@pytest.mark.attack
def test_a_ticket_is_not_a_name(urls: Urls) -> None:
    ticket = given()
    with pytest.raises(BadResource, match=r"is the ticket .* Write: with resume_lock") as error:
        lock(ticket)
    assert ticket not in f"{error.value}{error.value.resource}"
    uses: list[Callable[[], object]] = [
        lambda: resource(ticket),
        lambda: lock_resource(ticket)(hands_on)(RequestFactory().get("/")),
        lambda: hold(ticket)(lambda: None)(),
    ]
    for use in uses:
        with pytest.raises((BadResource, InvalidRedlock)):
            use()
    with pytest.raises(CommandError, match="ticket"):
        call_command("release_lock", ticket)
    take(ticket)


@pytest.mark.attack
def test_a_ticket_does_not_contain_the_token() -> None:
    ticket = given()
    (token,) = {
        (master.keyspace.get(memory_backend().deployment.lock(NAME)) or b"")[:32].decode()
        for master in memory_backend().masters
    }
    body = ticket.removeprefix("redlock-ticket*").partition(":")[0]
    shown = base64.urlsafe_b64decode(body + "==").decode()
    assert [word for word in (NAME, token, *MASTERS) if word in shown] == [NAME]


@pytest.mark.attack
def test_no_traceback_shows_a_ticket() -> None:
    ticket = given()
    wrong = ticket[:-3] + "abc"
    try:
        resume_lock(wrong)
    except BadTicket as error:
        frame, seen = error.__traceback__, []
        while frame is not None:
            seen.append(frame.tb_frame)
            frame = frame.tb_next
        own = [one for one in seen if "redlock_django" in one.f_code.co_filename]
        assert own
        assert not [one for one in own if wrong in repr(one.f_locals)]
        shown = SafeExceptionReporterFilter().get_traceback_frame_variables(None, own[-1])
        assert wrong not in repr(list(shown))
    held = resume_lock(ticket)
    assert ticket not in repr((held, vars(held), held._given))


def test_a_task_of_django_takes_the_lock_of_the_code_that_enqueues_it(settings: Settings) -> None:
    tasks = pytest.importorskip("django.tasks", reason="Django 6.0 and later")
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}}
    with lock(NAME) as held:
        done = tasks.task(ship).enqueue(held.transfer(ttl=60))
        assert done.return_value == held.fence
        again = tasks.task(ship).enqueue(done.args[0])
        assert again.errors[0].exception_class is TicketUsed


def ship(ticket: str) -> int:
    """Ship an order: a task must be a function of a module."""
    with resume_lock(ticket) as held:
        held.ensure_held()
        return held.fence


# Views.


Ask = Callable[..., Any]


@pytest.fixture(params=["with-middleware", "without"])
def ask(
    request: pytest.FixtureRequest, settings: Settings, urls: Urls, transactional_db: None
) -> Ask:
    """Lock a view and request it once."""
    others = [one for one in settings.MIDDLEWARE if one != LOCK_MIDDLEWARE]
    settings.MIDDLEWARE = [*others, *([LOCK_MIDDLEWARE] * (request.param != "without"))]

    def once(view: Callable[[HttpRequest], Any]) -> Any:
        urls(path("", lock_resource(NAME)(view)))
        return Client(raise_request_exception=False).get("/")

    return once


def inner() -> Any:
    """Return the lock of the view, as its code gets it."""
    return lock(NAME, reentrant=True)


@pytest.mark.parametrize("atomic", [True, False])
def test_a_task_that_begins_after_commit_takes_the_lock_of_the_view(
    ask: Ask, atomic: bool, happened: list[str]
) -> None:
    tickets: list[str] = []

    def view(request: HttpRequest) -> HttpResponse:
        order()
        held = inner().acquire()
        transaction.on_commit(lambda: tickets.append(held.transfer(ttl=60)))
        return HttpResponse()

    assert ask(view if atomic else transaction.non_atomic_requests(view)).status_code == 200
    assert Order.objects.count() == 1
    assert refused()
    with resume_lock(tickets[0]) as taken:
        taken.ensure_held()
    assert not refused()


def test_a_rollback_leaves_the_lock_handed_on_until_its_time_is_over(ask: Ask) -> None:
    tickets: list[str] = []

    def view(request: HttpRequest) -> HttpResponse:
        with inner() as held:
            tickets.append(held.transfer(ttl=20))
        order()
        raise ZeroDivisionError

    assert ask(view).status_code == 500
    assert Order.objects.count() == 0
    assert refused()
    MemoryBackend.advance(21)
    assert not refused()


def test_a_view_that_is_still_running_when_the_time_is_over_is_rolled_back(ask: Ask) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        with inner() as held:
            held.transfer(ttl=10)
        order()
        MemoryBackend.advance(11)
        return HttpResponse()

    answer = ask(view)
    assert answer.status_code == 503
    assert Order.objects.count() == 0


def test_a_stream_goes_on_after_its_lock_was_handed_on(ask: Ask) -> None:
    tickets: list[str] = []

    def chunks(held: Any) -> Iterator[str]:
        yield "a"
        tickets.append(held.transfer())
        yield "b"

    def view(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(chunks(inner().acquire()))

    answer = ask(view)
    assert b"".join(answer.streaming_content) == b"ab"
    answer.close()
    assert refused()
    take(tickets[0])
    assert not refused()


def hands_on(request: HttpRequest) -> HttpResponse:
    return HttpResponse(inner().acquire().transfer(ttl=60))


@pytest.mark.django_db(transaction=True)
def test_a_recorded_view_hands_its_lock_on(urls: Urls) -> None:
    urls(path("", idempotent(anonymous_scope=lambda _: "all")(lock_resource(NAME)(hands_on))))
    ticket = Client().post("/", headers={"Idempotency-Key": "k"}).content.decode()
    assert refused()
    take(ticket)
    assert not refused()


def test_inside_a_transaction_that_may_read_old_data_no_ticket_is_used(
    transactional_db: None,
) -> None:
    ticket = given()
    with transaction.atomic(), pytest.raises(InvalidRedlock, match="inside an open transaction"):
        resume_lock(ticket).acquire()
    with resume_lock(ticket), transaction.atomic():
        order()
    assert not refused()


def test_a_task_that_holds_the_name_itself_is_refused() -> None:
    ticket = given()
    with pytest.raises(ResourceLocked):
        hold(NAME)(lambda: resume_lock(ticket).acquire())()
    take(ticket)
