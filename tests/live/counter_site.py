"""A site with one counter. `main` serves it in a separate process, and prints its port."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import django
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application
from django.db import connection, connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from redlock_django import lock_resource
from redlock_django.locking.services import locks
from redlock_django.signals import lock_lost, lock_released

PK = 1
lost = threading.Event()
seen_at_release: list[int] = []


def read() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT n FROM site_counter WHERE pk = %s", [PK])
        n: int = cursor.fetchone()[0]
        return n


def write(n: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE site_counter SET n = %s WHERE pk = %s", [n, PK])


def add(request: HttpRequest, pk: int) -> HttpResponse:
    """Read, sleep for 2 ms, write: without a lock, an increment in between is overwritten."""
    n = read()
    time.sleep(0.002)
    write(n + 1)
    return JsonResponse({"n": n + 1})


def show(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"n": read(), "seen_at_release": seen_at_release})


@lock_resource("counter:<int:pk>", using="renewed")
def robbed(request: HttpRequest, pk: int) -> HttpResponse:
    """Delete the lock on all masters while the view runs."""
    write(1000)
    lost.clear()
    backend: Any = locks["default"].backend
    import redis

    for address in backend.addresses:
        host, _, port = address.name.rpartition(":")
        with redis.Redis(host=host, port=int(port)) as client:
            client.delete(backend.deployment.lock(f"counter:{pk}"))
    reported = lost.wait(60)
    return JsonResponse({"reported": reported})


@lock_resource("counter:<int:pk>", using="unrenewed")
def slow(request: HttpRequest, pk: int) -> HttpResponse:
    """Run for longer than the TTL of the lock."""
    write(2000)
    time.sleep(1.1)
    return JsonResponse({})


@lock_resource("counter:<int:pk>")
def failing(request: HttpRequest, pk: int) -> HttpResponse:
    write(3000)
    raise ZeroDivisionError


def note_loss(**said: Any) -> None:
    lost.set()


def look(**said: Any) -> None:
    """Record the value that another connection reads when the lock has been released."""

    def other() -> None:
        try:
            seen_at_release.append(read())
        finally:
            connections.close_all()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()


urlpatterns = [
    path("<int:pk>/locked/", lock_resource("counter:<int:pk>", wait=60)(add)),
    path("<int:pk>/unlocked/", add),
    path("<int:pk>/robbed/", robbed),
    path("<int:pk>/slow/", slow),
    path("<int:pk>/failing/", failing),
    path("", show),
]


class Server(ThreadedWSGIServer):
    """Django's server, with a longer queue of incoming connections."""

    request_queue_size = 128


class QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Do not log requests."""


def main() -> None:
    django.setup()
    if "COUNTER_CREATE" in os.environ:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS site_counter")
            cursor.execute("CREATE TABLE site_counter (pk integer PRIMARY KEY, n integer NOT NULL)")
            cursor.execute("INSERT INTO site_counter VALUES (%s, 0)", [PK])
    connections.close_all()
    lock_lost.connect(note_loss)
    if "COUNTER_LOOK" in os.environ:
        lock_released.connect(look)
    server = Server(("127.0.0.1", 0), QuietHandler)
    server.set_app(get_wsgi_application())
    print(f"listening on {server.server_address[1]}", flush=True)  # noqa: T201 - read by the test
    server.serve_forever()
