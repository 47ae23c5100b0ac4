"""A site that only locks. It writes HTTP statuses, and the modules of idempotency it imported.

Then a page uses the lazy attribute `request.idempotency_field`, which imports them.

It is run in an interpreter of its own, by tests/test_architecture.py.
"""

from __future__ import annotations

import sys

import django
from django.conf import settings
from django.http import HttpRequest, HttpResponse

MIDDLEWARE = "redlock_django.middleware.LockMiddleware"

settings.configure(
    ALLOWED_HOSTS=["testserver"],
    INSTALLED_APPS=["django.contrib.contenttypes", "redlock_django"],
    MIDDLEWARE=[MIDDLEWARE],
    REDLOCK={
        "default": {
            "BACKEND": "redlock_django.backends.memory.MemoryBackend",
            "RULES": [{"view": "by-rule", "key": "nightly"}],
        }
    },
    ROOT_URLCONF=__name__,
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {"context_processors": ["django.template.context_processors.request"]},
        }
    ],
)
django.setup()

from django.template import engines  # noqa: E402
from django.test import Client  # noqa: E402
from django.urls import path  # noqa: E402

from redlock_django import lock, lock_resource  # noqa: E402


@lock_resource("order:<pk>")
def view(request: HttpRequest, pk: int) -> HttpResponse:
    """Take one more lock."""
    with lock("stock"):
        return HttpResponse()


def form(request: HttpRequest) -> HttpResponse:
    """Render a form with a hidden key."""
    template = engines["django"].from_string("{{ request.idempotency_field }}")
    return HttpResponse(template.render({}, request))


urlpatterns = [
    path("form/", form),
    path("orders/<int:pk>/", view),
    path("nightly/", lambda request: HttpResponse(), name="by-rule"),
]

if __name__ == "__main__":
    client = Client()
    statuses = {client.get("/orders/7/").status_code, client.get("/nightly/").status_code}
    modules = [name for name in sys.modules if name.startswith("redlock_django.idempotency")]
    field = client.get("/form/").content.decode()
    sys.stdout.write(f"{statuses} {modules}\n{field}")
