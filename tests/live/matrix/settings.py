"""Settings of the sites; `server.post_fork` sets those in which the sites differ."""

from __future__ import annotations

import os
from typing import Any

from tests.timeouts import generous_timeouts

SECRET_KEY = "insecure: for tests only"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "tests.live.matrix.urls"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "redlock_django"]
MIDDLEWARE = ["redlock_django.middleware.LockMiddleware"]
USE_TZ = True
DATABASES: dict[str, dict[str, Any]] = {}
REDLOCK = {
    "default": {
        "MASTERS": os.environ["MATRIX_MASTERS"],
        "RESTART_DELAY": 0,
        "WAIT": 60,
        "MAX_WAITERS": 100,
        **generous_timeouts(),
    },
}
