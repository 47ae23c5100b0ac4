"""Settings of `counter_site`, read from environment variables that the test sets."""

from __future__ import annotations

import json
import os

SECRET_KEY = "insecure: for a test only"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "tests.live.counter_site"
INSTALLED_APPS = ["redlock_django"]
LOGGING_CONFIG = None
DATABASES = {"default": json.loads(os.environ["COUNTER_DATABASE"])}
REDLOCK = json.loads(os.environ["COUNTER_REDLOCK"])
