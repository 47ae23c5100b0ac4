"""The site that the browser opens: settings and URLs based on those of the shop.

Run as a program, it creates its database and users, and serves until it is killed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS, MIDDLEWARE, TEMPLATES
from tests.timeouts import generous_timeouts

DEBUG = True  # so that runserver serves static files
ROOT_URLCONF = "tests.browser.site"
MASTERS = os.environ.get("REDLOCK_MASTERS", "")
RELEASE = os.environ.get("SITE_RELEASE", "")
STATIC_URL = f"/static{RELEASE}/"
ALIAS = {"MASTERS": MASTERS, "RESTART_DELAY": 0, "RELEASE": RELEASE, **generous_timeouts()}
REDLOCK = {
    "default": ALIAS,
    "payments": {**ALIAS, "KEY_PREFIX": "payments"},
}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # the fastest
MIDDLEWARE = [*MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]  # as the browser asks
if os.environ.get("SITE_THEME"):
    INSTALLED_APPS = [os.environ["SITE_THEME"], *INSTALLED_APPS]
elif os.environ.get("SITE_NONCES"):
    # Django 6.1: only elements with the nonce of their page are allowed.
    MIDDLEWARE = ["django.middleware.csp.ContentSecurityPolicyMiddleware", *MIDDLEWARE]
    SECURE_CSP = {"script-src": ["<CSP_NONCE_SENTINEL>"], "style-src": ["<CSP_NONCE_SENTINEL>"]}
    TEMPLATES[0]["OPTIONS"]["context_processors"].append("django.template.context_processors.csp")
else:
    # Another theme may use inline scripts and styles.
    MIDDLEWARE = [*MIDDLEWARE, "tests.browser.site.strict"]

USERS = {
    "operator": [
        "view_heldlock",
        "release_heldlock",
        "view_idempotencyrecord",
        "resolve_idempotencyrecord",
    ],
    "viewer": ["view_heldlock"],
    "clerk": [],
    "anna": ["view_order", "change_order", "delete_order", "add_payment"],
    "reader": ["view_order"],
    "bob": ["view_order", "change_order", "delete_order"],
}
ORDERS = 11
"""The orders that can be edited: A-1, A-2 and so on."""

PASSWORD = "of the tests only"


def strict(get_response: Callable[[HttpRequest], HttpResponse]) -> Any:
    """Send a Content-Security-Policy that forbids inline scripts and styles."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        policy = "default-src 'self'; script-src 'self'; style-src 'self'"
        response["Content-Security-Policy"] = policy
        return response

    return middleware


def __getattr__(name: str) -> Any:
    # The admin can be imported only after the settings are configured.
    if name == "urlpatterns":
        from django.contrib import admin

        nothing = path("favicon.ico", lambda request: HttpResponse(status=204))
        urls = [nothing, path("admin/", admin.site.urls)]
        if os.environ.get("SITE_THEME") == "grappelli":
            urls.append(path("grappelli/", include("grappelli.urls")))
        return urls
    raise AttributeError(name)


def main(port: str) -> None:
    """Create the database and the users unless they exist, then serve."""
    import django
    from django.core.management import call_command

    django.setup()
    from redlock_django.backends.redis import backend

    # On a busy machine, masters that run may need longer than 0.5 s.
    backend.INSPECTION_TIMEOUT = 5.0
    call_command("migrate", verbosity=0)
    from django.contrib.auth.models import User

    if not User.objects.exists():
        plant()
    call_command("runserver", f"127.0.0.1:{port}", "--noreload", "--skip-checks", verbosity=0)


def plant() -> None:
    """Create the users and what they look at."""
    from django.contrib.auth.models import Permission, User

    for name, codenames in USERS.items():
        user = User.objects.create_user(name, password=PASSWORD, is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    from redlock_django.models import IdempotencyRecord

    for number, state in enumerate(IdempotencyRecord.State.values):
        IdempotencyRecord.objects.create(
            key_hash=f"{number:064x}",
            state=state,
            method="POST",
            path=f"/tenants/7f3a9c7f3a9c7f3a9c7f3a9c/orders/{number}/payments/",
            user="8e03978e-40d5-43e8-bc93-6894a57f9324",
            attempt="a" * 32,
            status=201 if state == "completed" else None,
        )
    from testproject.shop.models import Order

    for number in range(1, ORDERS + 1):
        Order.objects.create(number=f"A-{number}", total=1000)


if __name__ == "__main__":
    main(sys.argv[1])
