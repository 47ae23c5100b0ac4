"""One press of a button of the tour: its requests, their answers, and pictures of the masters."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from redlock_django.engine.protocol.slots import slot_resource
from redlock_django.signals import lock_acquired, lock_lost, lock_refused
from testproject.shop.models import Order
from testproject.shop.tour.demo_masters import PATIENCE
from testproject.shop.tour.picture import Picture, picture

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testproject.shop.serving import Answer, Shopper
    from testproject.shop.tour.demo_masters import DemoMasters


class Run:
    """The outcome of a button: `answers`, `pictures` and the payments of `order`.

    A picture is taken whenever a lock of the order is acquired, before its holder continues; the
    step says the caption beforehand. `refused` is set when a request is refused, or all `refusals`
    of them; `lost` when a lock of the order is lost, or the slow payment has been answered. While
    `shown` is not set, holders wait.
    """

    def __init__(self, demo: DemoMasters, shopper: Shopper) -> None:
        self.demo = demo
        self.shopper = shopper
        self.order = new_order()
        self.resource = f"order:{self.order.pk}"
        self.caption = "While the lock is held"
        self.note = ""
        self.answers: list[dict[str, Any]] = []
        self.pictures: list[Picture] = []
        self.refused = threading.Event()
        self.refusals = threading.Semaphore(0)
        self.shown = threading.Event()
        self.shown.set()
        self.lost = threading.Event()
        self.after_acquired: list[Any] = []

    def pay_twice_at_once(self, key: str = "") -> None:
        """Send two payments of the order at the same moment; the first waits for the second.

        A copy is shown after the answer that it repeats: either request may be the first.
        """
        if not key:  # With a key, the second gets the answer of the first, and is not refused.
            self.after_acquired.append(lambda: self.refused.wait(PATIENCE))
        answers = self.shopper.pay_together([self.order.pk] * 2, key)
        answers.sort(key=lambda answer: answer.replayed)
        for name, answer in zip(("Request A", "Request B"), answers, strict=True):
            self.add(name, answer)

    def pay(self, name: str, *, key: str = "", order: Order | None = None) -> None:
        """Send one payment."""
        self.add(name, self.shopper.pay((order or self.order).pk, key))

    def pay_when_possible(self, name: str) -> None:
        """Send one payment, and repeat it until masters that hung are counted again."""
        deadline = time.monotonic() + PATIENCE
        while (answer := self.shopper.pay(self.order.pk)).status in (423, 503):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        self.add(name, answer)

    @contextlib.contextmanager
    def slow_payment(self, name: str) -> Iterator[None]:
        """Send a payment that takes three seconds, and run the block meanwhile."""
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self.shopper.pay, self.order.pk, view="pay-slowly")
            asked.add_done_callback(lambda _: self.lost.set())
            yield
            self.answers.insert(0, _shown(name, asked.result()))

    def make_reports(self, many: int, *, limit: int) -> None:
        """Ask for reports at the same moment; `limit` are made while the others are refused."""
        self.resource = f"report:{self.order.pk}"
        self.refusals = threading.Semaphore(many - limit - 1)
        self.shown.clear()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self.shopper.pay_together, [self.order.pk] * many, view="report")
            self.refused.wait(PATIENCE)
            for slot in range(limit):
                self.take(f"Slot {slot} is held", slot_resource(self.resource, slot))
            self.shown.set()
            answers = sorted(asked.result(), key=lambda answer: answer.status)
        for name, answer in zip("ABCDE", answers, strict=True):
            self.add(f"Request {name}", answer)

    def add(self, name: str, answer: Answer) -> None:
        """Show an answer on the page."""
        self.answers.append(_shown(name, answer))

    def take(self, caption: str, resource: str = "") -> None:
        """Take a picture of the masters now, and of the lock of the order or of a slot."""
        self.pictures.append(picture(self.demo.masters, resource or self.resource, caption))

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Take a picture at every acquisition of the order's lock during the block."""
        receivers = [
            (lock_acquired, self._on_acquired),
            (lock_refused, self._on_refused),
            (lock_lost, self._on_lost),
        ]
        for signal, receiver in receivers:
            signal.connect(receiver)
        try:
            yield
        finally:
            for signal, receiver in receivers:
                signal.disconnect(receiver)

    def _on_acquired(self, resources: tuple[str, ...], **_: object) -> None:
        # Called in the thread of the holder, which continues when this method returns.
        if self.resource in resources and not self.shown.is_set():
            self.shown.wait(PATIENCE)
        elif self.resource in resources:
            self.take(self.caption)
            while self.after_acquired:
                self.after_acquired.pop()()

    def _on_refused(self, resources: tuple[str, ...], **_: object) -> None:
        if self.resource in resources and not self.refusals.acquire(blocking=False):
            self.refused.set()

    def _on_lost(self, resources: tuple[str, ...], **_: object) -> None:
        if self.resource in resources:
            self.lost.set()

    def outcome(self) -> dict[str, Any]:
        """Return all that the page shows, for the session."""
        self.order.refresh_from_db()
        return {
            "answers": self.answers,
            "pictures": self.pictures,
            "note": self.note,
            "order": self.order.number,
            "resource": self.resource,
            "state": self.order.state,
            "payments": self.order.payments.count(),
        }


def new_order() -> Order:
    """Return an order that nobody has paid."""
    number = f"T-{secrets.token_hex(3).upper()}"
    return Order.objects.create(number=number, total=500 + secrets.randbelow(9500))


def _shown(name: str, answer: Answer) -> dict[str, Any]:
    """Return an answer with the words that the page shows about it."""
    try:
        body = json.loads(answer.body)
    except ValueError:
        body = {"detail": answer.body}
    return {
        **asdict(answer),
        "name": name,
        "reason": HTTPStatus(answer.status).phrase,
        "kind": {200: "good", 423: "held", 409: "held"}.get(answer.status, "bad"),
        "fence": body.get("fence"),
        "slot": body.get("slot"),
        "body": json.dumps(body, indent=1, ensure_ascii=False),
    }
