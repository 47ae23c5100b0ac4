"""The models whose rows must be created once."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.auth.models import User
from django.db import models


class Payment(models.Model):
    """One payment for an order; the tests look for a second one.

    The foreign key is checked at COMMIT, so a wrong one makes the COMMIT fail.
    """

    order = models.IntegerField()
    user: models.ForeignKey[User | None, User | None] = models.ForeignKey(
        User, null=True, on_delete=models.CASCADE
    )

    objects: ClassVar[models.Manager[Payment]] = models.Manager()

    class Meta:
        """A model of this site only."""

        db_table = "payment"

    def __str__(self) -> str:
        return f"payment for {self.order}"
