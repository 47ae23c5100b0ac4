"""The shop's app configuration."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Orders and their payments."""

    name = "testproject.shop"
    label = "shop"
