"""`/<kind>/<pk>/` for every kind of view."""

from __future__ import annotations

from django.urls import path

from tests.live.increments.views import KINDS

urlpatterns = [path(f"{kind}/<int:pk>/", view, name=kind) for kind, view in KINDS.items()]
