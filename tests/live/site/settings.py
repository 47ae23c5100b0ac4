"""The settings of one server; the values that differ come from environment variables."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tests.timeouts import generous_timeouts

SECRET_KEY = "insecure: for tests only"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "tests.live.site.urls"
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "redlock_django",
    "tests.live.site",
]
MIDDLEWARE = [
    "tests.live.site.dying.dying_middleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "redlock_django.middleware.LockMiddleware",
]
WSGI_APPLICATION = "tests.live.site.serving.wsgi"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        **json.loads(os.environ["SITE_DATABASE"]),
        # Threads may keep their connections under WSGI; under ASGI each request has its own.
        "CONN_MAX_AGE": (
            60 if os.environ["SITE_SERVER"] == "wsgi" and not sys.flags.dev_mode else 0
        ),
        "ATOMIC_REQUESTS": os.environ["SITE_ATOMIC"] == "1",
    },
}
_MASTERS: dict[str, Any] = {
    "MASTERS": os.environ["SITE_MASTERS"],
    "RESTART_DELAY": 0,
    **generous_timeouts(),
    # Tests let fifty requests wait at the same time, which the kernel may pass to one process.
    "MAX_WAITERS": 100,
}
_BRIEF: dict[str, Any] = {"TTL": 1.5, **generous_timeouts(1.5)}
REDLOCK: dict[str, dict[str, Any]] = {
    "default": _MASTERS,
    # For processes that die while they hold a lock.
    "short": {**_MASTERS, **_BRIEF, "KEY_PREFIX": "short"},
    "forgotten": {**_MASTERS, **_BRIEF, "KEY_PREFIX": "forgotten", "MAX_HOLD": 1.5},
}
# Everything that is logged during requests.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "loggers": {
        "django": {"handlers": ["stderr"], "level": "DEBUG", "propagate": False},
        "django.db.backends.schema": {"level": "INFO"},
        "redlock_django": {"handlers": ["stderr"], "level": "DEBUG", "propagate": False},
    },
}
