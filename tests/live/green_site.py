"""A site without a database for gunicorn: one view under a lock, for which many requests wait.

It uses a lock when it is loaded, so with `--preload` the links of the parent process exist when
gunicorn forks its workers, which gevent patches then.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

from redlock_django import lock, lock_resource

if TYPE_CHECKING:
    from django.http import HttpRequest

_masters = {"MASTERS": os.environ["GREEN_MASTERS"].split(","), "RESTART_DELAY": 0}
settings.configure(
    ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=["redlock_django"],
    MIDDLEWARE=["redlock_django.middleware.LockMiddleware"],
    REDLOCK={"default": {**_masters, "TTL": 10, "MASTER_TIMEOUT": 0.9}},
    ROOT_URLCONF=__name__,
    SECRET_KEY="green",
)
inside = 0


@lock_resource("order:<int:pk>", wait=60)
def pay(request: HttpRequest, pk: int) -> HttpResponse:
    """Answer with the number of requests that were inside the view at the same time."""
    global inside
    inside += 1
    most = inside
    time.sleep(0.005)  # a greenlet lets the others run
    inside -= 1
    return HttpResponse(str(most))


urlpatterns = [path("pay/<int:pk>/", pay)]
application = get_wsgi_application()
with lock("start", wait=60):
    pass
