"""A lease that another caller extends at any moment of a method is not reported as lost.

The clock passes the deadline from before the extension at the same moment.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from redlock_django import leader, lock, lock_resource, locks, resume_lock
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.locking import caller, lease, nesting, transactions
from redlock_django.locking import leader as leader_module
from redlock_django.locking import lock as lock_module
from redlock_django.locking.lease import HeldLease
from redlock_django.locking.lock import Lock
from redlock_django.locking.renewal import renewal_service
from redlock_django.signals import lock_lost
from tests.app.conftest import FIVE, Configure

R = "order:1"
TTL, DUE, LATER = 9.0, 6.0, 5.0
READERS = {
    module.__file__ for module in (caller, lease, leader_module, lock_module, nesting, transactions)
}

pytestmark = [pytest.mark.usefixtures("no_renewals"), pytest.mark.django_db(transaction=True)]


class Meanwhile:
    """Another caller of a lock, which extends it once: at the step `at` of what runs in `steps`."""

    def __init__(self, backend: MemoryBackend) -> None:
        self.now = 1_000_000.0
        self.at = self.ended_at = 0
        self.step = -1  # of the block `steps`; -1 outside
        self.traced = False
        self.lease: HeldLease | None = None
        self.lost: list[str] = []
        backend.now = self._read
        backend.time = lambda: round(self.now * 1_000_000)
        lock_lost.connect(self._note)

    def _note(self, **arguments: Any) -> None:
        self.lost.append(arguments["reason"])

    @contextmanager
    def steps(self, held: HeldLease, *, traced: bool) -> Iterator[None]:
        """Count each read of the clock as a step or, if `traced`, each instruction of a reader."""
        self.lease = held
        self.now += DUE
        self.step = 0
        self.traced = traced
        before = sys.gettrace()
        try:
            if traced:
                sys.settrace(self._trace)
            yield
        finally:
            sys.settrace(before)
            self.ended_at, self.step = self.step, -1

    def _read(self) -> float:
        if not self.traced:
            self._count()
        return self.now

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in READERS:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and self.traced:
            self._count()
        return self._trace

    def _count(self) -> None:
        if self.step < 0:
            return
        self.step += 1
        if self.step == self.at + 1:
            step, self.step = self.step, -1
            assert self.lease is not None
            merging = vars(self.lease).get("_merging")
            if merging is None or not merging.locked():  # else it has to wait
                before = sys.gettrace()
                sys.settrace(None)
                self.lease.extend(TTL)
                sys.settrace(before)
                self.now += LATER
            self.step = step


@pytest.fixture
def meanwhile(memory: Configure) -> Meanwhile:
    return Meanwhile(memory(MASTERS=FIVE, TTL=TTL))


METHODS: dict[str, Callable[[Lock], Any]] = {
    "locked": lambda held: held.locked,
    "remaining": lambda held: held.remaining() > 0,
    "ensure_held": Lock.ensure_held,
    "verify": Lock.verify,
    "averify": lambda held: asyncio.run(held.averify()),
    "guard": Lock.guard,
    "extend": Lock.extend,
    "aextend": lambda held: asyncio.run(held.aextend()),
    "release": lambda held: [held.release()],
    "an inner lock": lambda held: [lock(R, reentrant=True).acquire().release()],
    "the renewal": lambda held: renewal_service._check_due([held._require_lease()]),
    "the next check": lambda held: (
        held._require_lease().next_check() < held._require_lease().lease.until
    ),
    "held_leases": lambda held: (
        caller.held_leases(locks["default"].backend, R) == [held._require_lease()]
    ),
}
"""Calls with a held lock. A call that returns False has failed."""


def method(call: Callable[[Lock], Any]) -> Callable[[Meanwhile, bool], None]:
    def run(meanwhile: Meanwhile, traced: bool) -> None:
        held = lock(R, renew=True).acquire()
        with meanwhile.steps(held._require_lease(), traced=traced):
            assert call(held) is not False
        if call is not METHODS["release"]:
            held.ensure_held()
            held.release()

    return run


def a_block(meanwhile: Meanwhile, traced: bool) -> None:
    held = lock(R).__enter__()
    with meanwhile.steps(held._require_lease(), traced=traced):
        held.__exit__(None, None, None)


def a_commit(meanwhile: Meanwhile, traced: bool) -> None:
    held = lock(R, renew=True).acquire()
    with meanwhile.steps(held._require_lease(), traced=traced), transaction.atomic():
        held.release()


def a_term(meanwhile: Meanwhile, traced: bool) -> None:
    with leader(R) as term, meanwhile.steps(term._lock._require_lease(), traced=traced):
        assert term.leads
        assert term.remaining() > 0
        term.ensure_held()


def a_view(meanwhile: Meanwhile, traced: bool) -> None:
    steps = []

    @lock_resource(R)
    def view(request: HttpRequest) -> HttpResponse:
        steps.append(
            meanwhile.steps(*caller.held_leases(locks["default"].backend, R), traced=traced)
        )
        steps[0].__enter__()
        return HttpResponse()

    try:
        assert view(RequestFactory().post("/")).status_code == 200
    finally:
        steps[0].__exit__(None, None, None)


def a_transfer(meanwhile: Meanwhile, traced: bool) -> None:
    held = lock(R, renew=True).acquire()
    with meanwhile.steps(held._require_lease(), traced=traced):
        ticket = held.transfer()
    resume_lock(ticket).acquire().release()


CALLERS = {
    "transfer": a_transfer,
    **{name: method(call) for name, call in METHODS.items()},
    "a block": a_block,
    "COMMIT": a_commit,
    "a term": a_term,
    "a view": a_view,
}


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLERS.values(), ids=list(CALLERS))
@pytest.mark.parametrize("traced", [False, True], ids=["clock", "instruction"])
def test_a_lease_that_is_extended_meanwhile_is_not_lost(
    meanwhile: Meanwhile, call: Callable[[Meanwhile, bool], None], traced: bool
) -> None:
    if call is a_transfer and not traced:
        return  # an extension after the masters have replaced the token is refused
    while True:
        call(meanwhile, traced)
        assert meanwhile.lost == [], f"at step {meanwhile.at}"
        if meanwhile.ended_at <= meanwhile.at:
            break
        meanwhile.at += 1
    assert meanwhile.at > 0
