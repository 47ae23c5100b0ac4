"""The rows of the fencing tests: accounts that record their last writer."""

from __future__ import annotations

from django.db import models

from redlock_django.fenced import FencedModel


class Account(FencedModel):
    """Money, in whole cents."""

    balance = models.IntegerField(default=100)

    class Meta:
        app_label = "fencing"

    def __str__(self) -> str:
        return f"account {self.pk}"
