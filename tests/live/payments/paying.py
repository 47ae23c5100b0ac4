"""Clients of the site, and its database as seen from outside."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from itertools import count
from pathlib import Path
from typing import Any

from redlock_django.testing.masters import LocalMaster
from tests.live.increments.serving import ROOT, Site, serving
from tests.waiting import until

JSON = b'{"amount": 5}'
SETTINGS = "tests.live.payments.settings"


@dataclass(frozen=True)
class Answer:
    """A response; `replayed` is None if it has no such header."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of a refusal, empty for anything else."""
        if self.headers["Content-Type"] != "application/problem+json":
            return ""
        return str(self.json["code"])

    @property
    def replayed(self) -> bool | None:
        """The value of `Idempotent-Replayed`."""
        return {"true": True, "false": False, None: None}[self.headers["Idempotent-Replayed"]]


@dataclass
class Client:
    """A client that pays at one site or several; it is logged in if it has a name."""

    site: Site
    name: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    csrf: str = ""

    def __post_init__(self) -> None:
        if self.name:
            self.log_in()

    def log_in(self) -> None:
        """Get a new session; also send a token, as clients of an API do."""
        answer = self._ask(f"/login/{self.name}/", b"", {})
        assert answer.status == 200, self.site.log
        cookies = SimpleCookie()
        for line in answer.headers.get_all("Set-Cookie", []):
            cookies.load(line)
        self.csrf = answer.json["csrf"]
        self.headers = {
            "Cookie": "; ".join(f"{name}={morsel.value}" for name, morsel in cookies.items()),
            "X-CSRFToken": self.csrf,
            "Authorization": f"Token {secrets.token_hex(20)}",
        }

    def at(self, site: Site) -> Client:
        """Return the same user at another site of the same database."""
        return Client(site, "", self.headers, self.csrf)

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
        sent = {"Content-Type": "application/json", **self.headers}
        optional = {"Idempotency-Key": key, "X-Die": die or None, "X-Do": do or None}
        sent |= {name: value for name, value in optional.items() if value is not None}
        return self._ask(f"/{kind}/{order}/", body, sent)

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
    def asking(self, kind: str, order: int, key: str) -> Iterator[None]:
        """Request a payment that waits at its gate, and disconnect when the block is left."""
        sent = {"Content-Type": "application/json", "X-Do": "wait", "Idempotency-Key": key}
        with self.connected() as connection:
            connection.request("POST", f"/{kind}/{order}/", JSON, {**self.headers, **sent})
            yield

    @contextlib.contextmanager
    def connected(self) -> Iterator[http.client.HTTPConnection]:
        """A connection to the site, which is closed at the end of the block."""
        connection = http.client.HTTPConnection("127.0.0.1", self.site.port, timeout=90)
        with contextlib.closing(connection):
            yield connection

    def _ask(self, path: str, body: Any, headers: Mapping[str, str]) -> Answer:
        with self.connected() as connection:
            # The server refuses forbidden characters.
            connection.request("POST", path, body, {"Connection": "close", **headers})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())


def all_at_once(clients: list[Client], kind: str, order: int, key: str, times: int) -> list[Answer]:
    """Send this many equal requests at the same time, to one site after the other."""
    start = threading.Barrier(times)

    def one(number: int) -> Answer:
        start.wait(60)
        return clients[number % len(clients)].pay(kind, order, key)

    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(one, range(times)))


_orders = count(1)


@dataclass
class Books:
    """A database of payments: its entry of DATABASES, and what was committed."""

    database: dict[str, Any]

    def __post_init__(self) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "INCREMENTS_DATABASE": json.dumps(self.database),
            "INCREMENTS_MASTERS": "redis://127.0.0.1:1/0",
            "INCREMENTS_SERVER": "",
            "INCREMENTS_ATOMIC": "0",
            "PAYMENTS_GATES": "/nowhere",
        }
        migrate = [sys.executable, "-m", "django", "migrate", "--verbosity", "0"]
        subprocess.run(migrate, check=True, cwd=ROOT, env=environment, timeout=120)
        self._mutex = threading.Lock()
        self._connection = self._connect()

    def _connect(self) -> Any:
        if self.database["ENGINE"].endswith("sqlite3"):
            return sqlite3.connect(self.database["NAME"], timeout=20, check_same_thread=False)
        import psycopg

        return psycopg.connect(
            host=self.database["HOST"],
            port=self.database["PORT"],
            user=self.database["USER"],
            dbname=self.database["NAME"],
            autocommit=True,
        )

    def payments(self, order: int) -> int:
        """Return the number of payments for an order."""
        return int(self.rows(f'SELECT count(*) FROM payment WHERE "order" = {order}')[0][0])

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Send any request."""
        with self._mutex:
            return list(self._connection.execute(query).fetchall())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@dataclass
class Shop:
    """A site with its database, its masters, and gates at which its views wait."""

    site: Site
    books: Books
    masters: list[LocalMaster]
    gates: Path
    is_async: bool
    is_atomic: bool

    def client(self, name: str = "ann") -> Client:
        """Return a client that has just logged in."""
        return Client(self.site, name)

    def gate(self, order: int) -> tuple[Path, Path]:
        """Return the file that shows that a view waits, and the file that makes it continue."""
        return self.gates / f"{order}.entered", self.gates / f"{order}.open"

    @contextlib.contextmanager
    def waiting(self, client: Client, kind: str, order: int, key: str | None) -> Iterator[Pending]:
        """Keep a payment waiting, done and not yet answered, until the block is left."""
        with self.asked(client, kind, order, key, do="wait") as pending:
            entered, pending.gate = self.gate(order)
            until(lambda: pending.stands_before(entered), f"the view: {self.site.log}")
            yield pending

    @contextlib.contextmanager
    def asked(
        self, client: Client, kind: str, order: int, key: str | None, do: str = ""
    ) -> Iterator[Pending]:
        """Request a payment in a thread; it is answered when the block is left."""
        with ThreadPoolExecutor(1) as pool:
            pending = Pending(pool.submit(client.pay, kind, order, key, do=do))
            try:
                yield pending
            finally:
                pending.let_go()

    def locks(self, prefix: str) -> set[str]:
        """Return the names of the locks that are on at least one master."""
        found: set[str] = set()
        for master in self.masters:
            with master.client() as client:
                found |= {key.decode() for key in client.scan_iter(f"{prefix}:lock:*", count=1000)}
        return found


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

    @property
    def is_over(self) -> bool:
        """Return whether the request is answered."""
        return self._future.done()

    def let_go(self) -> None:
        """Make the view continue, if it waits."""
        if self.gate is not None:
            self.gate.touch()

    @property
    def answer(self) -> Answer:
        """The response."""
        self.let_go()
        return self._future.result(90)


def new_order() -> int:
    """Return an order that has no payment yet."""
    return next(_orders)


def new_key() -> str:
    """Return a new key."""
    return str(uuid.uuid4())


@contextlib.contextmanager
def shop(name: str, *, books: Books, masters: list[LocalMaster], gates: Path) -> Iterator[Shop]:
    """Run a site: "wsgi-atomic", "asgi-plain" and so on."""
    server, _, transactions = name.partition("-")
    atomic = transactions == "atomic"
    with serving(
        server,
        database=books.database,
        masters=masters,
        atomic=atomic,
        DJANGO_SETTINGS_MODULE=SETTINGS,
        PAYMENTS_GATES=str(gates),
    ) as site:
        yield Shop(site, books, masters, gates, server == "asgi", atomic)
