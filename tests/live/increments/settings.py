"""Settings of the site; the environment has those that differ between servers."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tests.timeouts import generous_timeouts

SECRET_KEY = "insecure: for tests only"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "tests.live.increments.urls"
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "redlock_django",
    "tests.live.increments",
]
MIDDLEWARE = ["redlock_django.middleware.LockMiddleware"]
WSGI_APPLICATION = "tests.live.increments.serving.wsgi"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
server = os.environ["INCREMENTS_SERVER"]
DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        **json.loads(os.environ["INCREMENTS_DATABASE"]),
        # Long-lived threads may keep their connections; under ASGI each request has its own.
        "CONN_MAX_AGE": 60 if server == "wsgi" and not sys.flags.dev_mode else 0,
        "ATOMIC_REQUESTS": os.environ["INCREMENTS_ATOMIC"] == "1",
    },
}
REDLOCK = {
    "default": {
        "MASTERS": os.environ["INCREMENTS_MASTERS"],
        "RESTART_DELAY": 0,
        "WAIT": 50,
        "MAX_WAITERS": 100,
        "TTL": 10,
        **generous_timeouts(),
    },
}
