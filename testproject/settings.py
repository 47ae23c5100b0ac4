"""Settings of the test project. Values that differ between runs come from the environment."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

BASE_DIR = Path(__file__).resolve().parent.parent

# The site is not reachable from outside and keeps nothing secret.
SECRET_KEY = "insecure: for the demo and the tests only"
DEBUG = os.environ.get("SHOP_DEBUG", "") == "1"
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", "testserver"]

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
    "django.contrib.staticfiles",
    "redlock_django",
    "testproject.shop",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "redlock_django.middleware.LockMiddleware",
]

ROOT_URLCONF = "testproject.urls"
WSGI_APPLICATION = "testproject.wsgi.application"
ASGI_APPLICATION = "testproject.asgi.application"

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", str(BASE_DIR / "shop.sqlite3")),
        # Every view runs in a transaction. @lock_resource acquires its lock outside of it.
        "ATOMIC_REQUESTS": True,
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL;",
        },
    },
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDLOCK: dict[str, dict[str, Any]] = {
    "default": {
        "MASTERS": os.environ.get(
            "REDLOCK_MASTERS",
            "redis://127.0.0.1:6379/0,redis://127.0.0.1:6380/0,redis://127.0.0.1:6381/0",
        ),
    },
}

# The shop's simulated payment provider, a function of the seconds that it takes.
SHOP_PAYMENT_SECONDS = float(os.environ.get("SHOP_PAYMENT_SECONDS", "0.15"))
SHOP_PROVIDER = time.sleep

STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"  # Django's default is America/Chicago.
LANGUAGE_CODE = "en-us"
