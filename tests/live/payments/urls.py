"""`/<kind>/<order>/` for every kind of view."""

from __future__ import annotations

from django.urls import path

from tests.live.payments.views import KINDS, log_in

urlpatterns = [path(f"{kind}/<int:order>/", view, name=kind) for kind, view in KINDS.items()]
urlpatterns += [path("login/<str:name>/", log_in)]
