"""URLs: the shop at `/`, the admin at `/admin/`."""

from __future__ import annotations

from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("", include("testproject.shop.urls")),
    path("admin/", admin.site.urls),
    # The pages of the admin name no icon, so a browser asks for this one.
    path("favicon.ico", RedirectView.as_view(url=static("shop/icon.svg"))),
]
