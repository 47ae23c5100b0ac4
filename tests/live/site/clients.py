"""Clients of the site that pay."""

from __future__ import annotations

import contextlib
import http.client
import secrets
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.cookies import SimpleCookie
from itertools import count
from pathlib import Path
from typing import Any

from tests.live.site.serving import Answer, Site
from tests.waiting import until

JSON = b'{"amount": 5}'
_orders = count(1)


@dataclass
class Client:
    """A client that is logged in at one site, or at several of the same database."""

    site: Site
    name: str = "ann"
    headers: dict[str, str] = field(default_factory=dict)
    csrf: str = ""

    def __post_init__(self) -> None:
        if not self.headers:
            self.log_in()

    def log_in(self) -> None:
        """Get a new session; also send a token, as clients of an API do."""
        answer = self.site.request("POST", f"/login/{self.name}/")
        assert answer.status == 200, self.site.log
        cookies = SimpleCookie()
        for line in answer.headers.get_all("Set-Cookie", []):
            cookies.load(line)
        self.csrf = answer.json["csrf"]
        self.headers = {
            "Cookie": "; ".join(f"{name}={morsel.value}" for name, morsel in cookies.items()),
            "X-CSRFToken": self.csrf,
            "Authorization": f"Token {secrets.token_hex(20)}",
            "Content-Type": "application/json",
        }

    def at(self, site: Site) -> Client:
        """Return the same user at another site of the same database."""
        return replace(self, site=site)

    def pay(
        self,
        kind: str,
        order: int,
        key: str | None,
        body: Any = JSON,
        *,
        die: str = "",
        do: str = "",
    ) -> Answer:
        """Request a payment; raises an OSError or HTTPException if there is no response."""
        optional = {"Idempotency-Key": key, "X-Die": die or None, "X-Do": do or None}
        sent = {name: value for name, value in optional.items() if value is not None}
        return self.site.request("POST", f"/pay/{kind}/{order}/", body, {**self.headers, **sent})

    def pay_in_time(
        self, kind: str, order: int, key: str | None, do: str, has_run: Callable[[], bool]
    ) -> Answer:
        """Request a payment until the masters answer in time for its TTL, on a busy machine.

        Once its view has run, no refusal is accepted.
        """
        answers: list[Answer] = []

        def is_in_time() -> bool:
            answers.append(self.pay(kind, order, key, do=do))
            return answers[-1].code != "idempotency-unavailable" or has_run()

        until(is_in_time, "a quorum", longest=0.2)
        return answers[-1]

    def is_left_alone(self, kind: str, order: int, key: str, die: str) -> None:
        """Request a payment, and check that the process that should answer has died.

        On a busy machine the masters may answer a worker that has just started too late for its
        short TTL. That request has done nothing, and is repeated.
        """

        def has_died() -> bool:
            try:
                answer = self.pay(kind, order, key, die=die)
            except (OSError, http.client.HTTPException):
                return True
            refused = answer.code == "idempotency-unavailable"
            assert refused, f"no process died: {answer} {self.site.log}"
            return False

        until(has_died, "a quorum", longest=0.2)

    @contextlib.contextmanager
    def leaving(self, kind: str, order: int, key: str) -> Iterator[None]:
        """Request a payment that waits at its gate, and disconnect when the block is left."""
        sent = {**self.headers, "X-Do": "wait", "Idempotency-Key": key}
        with self.site.connected() as connection:
            connection.request("POST", f"/pay/{kind}/{order}/", JSON, sent)
            yield

    @contextlib.contextmanager
    def waiting(self, kind: str, order: int, key: str | None) -> Iterator[Pending]:
        """Keep a payment waiting, done and not yet answered, until the block is left."""
        entered, gate = self.site.gate(order)
        with self.asked(kind, order, key, do="wait", has_run=entered.exists) as pending:
            pending.gate = gate
            until(lambda: pending.stands_before(entered), f"the view: {self.site.log}")
            yield pending

    @contextlib.contextmanager
    def asked(
        self,
        kind: str,
        order: int,
        key: str | None,
        do: str = "",
        has_run: Callable[[], bool] = lambda: False,
    ) -> Iterator[Pending]:
        """Request a payment in a thread; it is answered when the block is left."""
        with ThreadPoolExecutor(1) as pool:
            pending = Pending(pool.submit(self.pay_in_time, kind, order, key, do, has_run))
            try:
                yield pending
            finally:
                pending.let_go()


@dataclass
class Pending:
    """A payment requested in another thread; `answer` waits for its response."""

    _future: Future[Answer]
    gate: Path | None = None

    def stands_before(self, sign: Path) -> bool:
        """Return whether the view waits; raise if it has answered instead."""
        if self._future.done():
            raise AssertionError(f"did not wait: {self._future.result()}")
        return sign.exists()

    def let_go(self) -> None:
        """Make the view continue, if it waits."""
        if self.gate is not None:
            self.gate.touch()

    @property
    def answer(self) -> Answer:
        """The response."""
        self.let_go()
        return self._future.result(90)


def all_at_once(clients: list[Client], kind: str, order: int, key: str, times: int) -> list[Answer]:
    """Send this many equal requests at the same time, to one site after the other."""
    start = threading.Barrier(times)

    def one(number: int) -> Answer:
        start.wait(60)
        return clients[number % len(clients)].pay(kind, order, key)

    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(one, range(times)))


def new_order() -> int:
    """Return an order that has no payment yet."""
    return next(_orders)


def new_key() -> str:
    """Return a new key."""
    return str(uuid.uuid4())
