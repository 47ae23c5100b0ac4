"""The shop's app configuration."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """The app with orders and their payments."""

    name = "testproject.shop"
    label = "shop"
