"""The shop in this process, with a real HTTP server, and an HTTP client that pays orders."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from dataclasses import dataclass
from http.cookies import SimpleCookie
from io import StringIO
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.management import call_command
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application
from django.db import connections
from django.test.utils import override_settings

from redlock_django.testing.processes import ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from redlock_django.testing import LocalMaster

PROVIDER = 0.15  # seconds that the simulated payment provider takes


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Log nothing, because the demo uses the terminal."""


class _Server(ThreadedWSGIServer):
    # With the default of 10, connections of many clients at once are dropped, and the kernel
    # retries them only after a second.
    request_queue_size = 128


@contextlib.contextmanager
def shop_on(masters: list[LocalMaster], **options: float) -> Iterator[None]:
    """Keep the shop's locks on these masters, and its orders in a new database, during the block.

    The masters must be new: they are declared trusted. `options` are further keys of REDLOCK.
    """
    urls = [master.url for master in masters]
    # A restarted master is counted again after about 13 s, by default after a minute. The machine
    # may be busy.
    redlock = {"default": {"MASTERS": urls, "MAX_TTL": 10, "MASTER_TIMEOUT": 0.5, **options}}
    # A process group removes its directory even if this process is killed.
    with ProcessGroup("redlock-demo-") as processes, contextlib.ExitStack() as stack:
        # Each thread creates its connection from these settings at first use. That of this thread
        # may be open, and in a test it may be the only one to a database in memory: it is kept.
        kept = connections["default"]
        del connections["default"]
        stack.callback(connections.__setitem__, "default", kept)
        stack.callback(kept.settings_dict.update, NAME=kept.settings_dict["NAME"])
        stack.callback(lambda: connections["default"].close())
        kept.settings_dict["NAME"] = str(processes.directory / "shop.sqlite3")
        stack.enter_context(override_settings(REDLOCK=redlock, SHOP_PAYMENT_SECONDS=PROVIDER))
        call_command("migrate", verbosity=0, interactive=False)
        call_command("redlock_init", stdout=StringIO())
        yield


@contextlib.contextmanager
def serving(port: int = 0) -> Iterator[str]:
    """Serve the site on 127.0.0.1 in threads and yield its URL. Port 0 selects a free port.

    Raises `OSError` if the port is in use.
    """
    server = _Server(("127.0.0.1", port), _QuietHandler)
    server.set_app(StaticFilesHandler(get_wsgi_application()))
    loop = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="shop", daemon=True
    )
    loop.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        loop.join()
        server.server_close()


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to one payment; `ms` is the time since the first byte of the request.

    `replayed` is whether it is the stored response to an earlier request with the same key.
    """

    status: int
    ms: float
    retry_after: str | None
    body: str
    replayed: bool = False

    @property
    def detail(self) -> str:
        """The message in the response."""
        try:
            said = json.loads(self.body)
        except ValueError:
            return self.body
        return str(said.get("detail") or said) if isinstance(said, dict) else str(said)


class Shopper:
    """Pays orders as a browser does, with cookies, a CSRF token and a connection per request."""

    def __init__(self, url: str, timeout: float = 30.0) -> None:
        self._place = urlsplit(url).netloc
        self._timeout = timeout
        connection = self._connect()
        with contextlib.closing(connection):
            connection.request("GET", "/", headers={"Accept": "text/html"})
            answer = connection.getresponse()
            answer.read()
        cookies = SimpleCookie("; ".join(answer.headers.get_all("Set-Cookie", [])))
        if answer.status != 200 or "csrftoken" not in cookies:
            raise RuntimeError(f"the shop's front page answered {answer.status}")
        self._headers = {
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
            "Cookie": "; ".join(f"{name}={one.value}" for name, one in cookies.items()),
            "X-CSRFToken": cookies["csrftoken"].value,
            "Connection": "close",
        }

    def pay(self, order: int, key: str = "", view: str = "pay") -> Answer:
        """Pay one order. Raises `OSError` if the server cannot be reached."""
        return self.pay_together([order], key, view)[0]

    def pay_together(self, orders: Sequence[int], key: str = "", view: str = "pay") -> list[Answer]:
        """Pay all orders at the same moment, each over its own open connection.

        `key` is the idempotency key in the form, if any; `view` is "pay", "pay-slowly" or "report".
        """
        form = urlencode({"idempotency_key": key}) if key else ""
        start = threading.Barrier(len(orders))
        answers: list[Answer | BaseException] = [RuntimeError("no answer")] * len(orders)

        def one(index: int, order: int) -> None:
            try:
                with contextlib.closing(self._connect()) as connection:
                    connection.connect()
                    start.wait(self._timeout)
                    began = time.perf_counter()
                    path = f"/orders/{order}/{view}/"
                    connection.request("POST", path, form, self._headers)
                    got = connection.getresponse()
                    body = got.read().decode()
                    took = (time.perf_counter() - began) * 1000
                    answers[index] = Answer(
                        got.status,
                        took,
                        got.getheader("Retry-After"),
                        body,
                        got.getheader("Idempotent-Replayed") == "true",
                    )
            except BaseException as error:  # noqa: BLE001 - raised below, in the calling thread
                start.abort()
                answers[index] = error

        threads = [
            threading.Thread(target=one, args=pair, daemon=True) for pair in enumerate(orders)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if failures:
            raise failures[0]
        return [answer for answer in answers if isinstance(answer, Answer)]

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._place, timeout=self._timeout)
