"""`/<kind>/<key>/` for every kind of view."""

from __future__ import annotations

from typing import Any

from django.urls import path

from tests.live.site import counters, payments


def without_token(view: Any) -> Any:
    """Accept requests without a CSRF token."""
    view.csrf_exempt = True
    return view


urlpatterns = [
    *(path(f"{kind}/<int:pk>/", without_token(view)) for kind, view in counters.KINDS.items()),
    *(path(f"pay/{kind}/<int:order>/", view) for kind, view in payments.KINDS.items()),
    path("login/<str:name>/", payments.log_in),
]
