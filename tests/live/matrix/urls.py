"""`/<view>/<decorators>/<counter>/` for every combination."""

from __future__ import annotations

import sys

from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from tests.live.matrix import views
from tests.live.matrix.cells import DECORATORS, VIEWS

urlpatterns = [
    path(f"{view}/{name}/", include([getattr(views, view)(views.DECORATES[name])]))
    for view in VIEWS
    for name in DECORATORS
]


def handler500(request: HttpRequest) -> HttpResponse:
    """Answer with the message of the exception, which is otherwise only logged."""
    return HttpResponse(str(sys.exc_info()[1]), status=500)
