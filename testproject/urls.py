"""URLs: the shop at `/`, the admin at `/admin/`."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("testproject.shop.urls")),
    path("admin/", admin.site.urls),
]
