"""The app with the models that are edited in the tests of edit locks."""

from __future__ import annotations

from django.apps import AppConfig


class EditedConfig(AppConfig):
    name = "tests.contrib.edited"
    label = "edited"
    default_auto_field = "django.db.models.BigAutoField"
