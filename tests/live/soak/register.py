"""The register that the soak's workers increment and append to."""

from __future__ import annotations

from django.db import models

from redlock_django.fenced import FencedModel


class Register(FencedModel):
    """A number, and a list of entries, each of which names the previous one."""

    name = models.TextField(primary_key=True)
    value = models.IntegerField(default=0)
    entry = models.TextField(default="")
    after = models.TextField(default="")

    class Meta:
        app_label = "soak"
        db_table = "soak_register"

    def __str__(self) -> str:
        return self.name
