"""The configuration of gunicorn: it loads the views once, and each worker is another site."""

from __future__ import annotations

import json
import os
from typing import Any

from tests.live.matrix.cells import kinds

databases: dict[str, Any] = json.loads(os.environ["MATRIX_DATABASES"])
workers = len(kinds(databases))
keepalive = 60
timeout = 0  # never replace a worker that a busy machine slows: the next one is another site


def on_starting(server: Any) -> None:
    """Load what all sites share."""
    import django

    django.setup()
    import tests.live.matrix.urls  # noqa: F401


def post_fork(server: Any, worker: Any) -> None:
    """Make a new worker the next site, with a listener of its own."""
    from django.conf import settings
    from django.db import connections

    number = worker.age - 1
    worker.sockets = [worker.sockets[number]]
    kind = kinds(databases)[number]
    entry = {**databases[kind.database], "ATOMIC_REQUESTS": kind.atomic}
    connections.settings = connections.configure_settings({"default": entry})
    if kind.outer:
        settings.MIDDLEWARE = [
            "reversion.middleware.RevisionMiddleware",
            *settings.MIDDLEWARE,
        ]


def __getattr__(name: str) -> Any:
    # The applications, which each worker creates for itself.
    if name == "wsgi":
        from django.core.handlers.wsgi import WSGIHandler

        return WSGIHandler()
    if name == "asgi":
        from django.core.handlers.asgi import ASGIHandler

        return ASGIHandler()
    raise AttributeError(name)
