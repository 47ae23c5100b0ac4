"""What must happen once."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.auth.models import User
from django.db import models


class Payment(models.Model):
    """One payment for an order; two of them is what the tests look for.

    A foreign key is checked at COMMIT only, so one that leads nowhere makes the COMMIT fail.
    """

    order = models.IntegerField()
    user: models.ForeignKey[User | None, User | None] = models.ForeignKey(
        User, null=True, on_delete=models.CASCADE
    )

    objects: ClassVar[models.Manager[Payment]] = models.Manager()

    class Meta:
        """Ours alone."""

        db_table = "payment"

    def __str__(self) -> str:
        return f"payment for {self.order}"
