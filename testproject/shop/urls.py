"""The URLs of the shop."""

from __future__ import annotations

from django.urls import path

from testproject.shop import views

app_name = "shop"

urlpatterns = [
    path("", views.index, name="index"),
    path("orders/new/", views.new_order, name="new-order"),
    path("orders/<int:pk>/", views.order_facts, name="order"),
    path("orders/<int:pk>/pay/", views.pay, name="pay"),
]
