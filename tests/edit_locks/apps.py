"""The app with the models that are edited in these tests."""

from __future__ import annotations

from django.apps import AppConfig


class EditedConfig(AppConfig):
    name = "tests.edit_locks"
    label = "edited"
    default_auto_field = "django.db.models.BigAutoField"
