"""A small site that any release runs: `python last_release_site.py COMMAND ...`.

The environment variable SITE has the settings as JSON. The tests start it with the Python of the
last release and with that of the working tree, so it imports only names that are public in both.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from pathlib import Path

import django
from django.conf import settings
from django.core.management import call_command
from django.db.migrations.loader import MigrationLoader
from django.http import HttpRequest, JsonResponse
from django.urls import path

if __name__ == "__main__":
    settings.configure(
        **json.loads(os.environ["SITE"]),
        ALLOWED_HOSTS=["*"],
        INSTALLED_APPS=[
            *("django.contrib.contenttypes", "django.contrib.auth"),
            "redlock_django",
        ],
        MIDDLEWARE=["redlock_django.middleware.LockMiddleware"],
        ROOT_URLCONF=__name__,
        SECRET_KEY="of a test",
        USE_TZ=True,
    )
    django.setup()

from django.test import Client

from redlock_django import ResourceLocked, idempotent, lock


def count(key: str, name: str, times: str) -> None:
    """Add 1 to the number in a file, so many times, each under the lock; print fence and number.

    The first line is "begins".
    """
    file = Path(name)
    print("begins", flush=True)
    for _ in range(int(times)):
        with lock(key, wait=300) as held:
            value = int(file.read_text()) + 1
            time.sleep(0.001)  # a second holder would read the same number
            file.write_text(str(value))
            print(held.fence, value)


def hold(key: str) -> None:
    """Hold the lock from the line "held" until a line is read, and release it."""
    with lock(key, wait=300) as held:
        print("held", held.fence, flush=True)
        sys.stdin.readline()
        held.ensure_held()
    print("released")


def attempt(key: str) -> None:
    """Print whether another process holds the lock."""
    try:
        with lock(key, wait=0) as held:
            print("free", held.fence)
    except ResourceLocked:
        print("locked")


def owner(request: HttpRequest) -> str:
    """Return the owner of keys: all requests have the same one."""
    return "one"


@idempotent(anonymous_scope=owner)
def pay(request: HttpRequest) -> JsonResponse:
    """Answer in another way each time that it runs."""
    return JsonResponse({"payment": str(uuid.uuid4())}, status=201)


urlpatterns = [path("pay/", pay)]


def send(key: str, amount: str) -> None:
    """Send a request with an Idempotency-Key; print status, whether it is a replay, and body."""
    answer = Client().post(
        "/pay/",
        {"amount": amount},
        content_type="application/json",
        headers={"Idempotency-Key": key},
    )
    replayed = answer.headers.get("Idempotent-Replayed")
    print(json.dumps([answer.status_code, replayed, json.loads(answer.content)]))


def migrate(*target: str) -> None:
    """Migrate this app, to the newest migration or to the given one, and print what was done."""
    call_command("migrate", "redlock_django", *target, no_color=True)


def newest() -> None:
    """Print the name of the newest migration of this release."""
    ((_, name),) = MigrationLoader(None).graph.leaf_nodes("redlock_django")
    print(name)


if __name__ == "__main__":
    commands = {each.__name__: each for each in (attempt, count, hold, migrate, newest, send)}
    commands[sys.argv[1]](*sys.argv[2:])
