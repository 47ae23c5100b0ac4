"""The URLs of the shop and of its tour."""

from __future__ import annotations

from django.urls import path

from testproject.shop import views
from testproject.shop.tour import views as tour

app_name = "shop"

urlpatterns = [
    path("", tour.start, name="start"),
    path("tour/masters/", tour.masters, name="masters"),
    path("tour/repair/", tour.repair, name="repair"),
    path("tour/login/", tour.log_in, name="login"),
    path("tour/<slug:slug>/", tour.step, name="step"),
    path("docs/<path:name>.md", tour.document, name="document"),
    path("orders/<int:pk>/pay/", views.pay, name="pay"),
    path("orders/<int:pk>/pay-slowly/", views.pay_slowly, name="pay-slowly"),
    path("orders/<int:pk>/report/", views.report, name="report"),
]
