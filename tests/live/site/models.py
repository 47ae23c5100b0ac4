"""The counter, and the payments whose rows must be created once."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.auth.models import User
from django.db import models


class Counter(models.Model):
    """A number that loses increments unless they are made one after the other."""

    value = models.IntegerField(default=0)

    objects: ClassVar[models.Manager[Counter]] = models.Manager()

    class Meta:
        """The name of the table."""

        app_label = "site"
        db_table = "counter"

    def __str__(self) -> str:
        return str(self.value)


class Payment(models.Model):
    """One payment for an order; the tests look for a second one.

    The foreign key is checked at COMMIT, so a wrong one makes the COMMIT fail. In the process of
    the tests, where this table does not exist, a user that is deleted has no payments.
    """

    order = models.IntegerField()
    user: models.ForeignKey[User | None, User | None] = models.ForeignKey(
        User, null=True, on_delete=models.DO_NOTHING, related_name="+"
    )

    objects: ClassVar[models.Manager[Payment]] = models.Manager()

    class Meta:
        """The name of the table."""

        app_label = "site"
        db_table = "payment"

    def __str__(self) -> str:
        return f"payment for {self.order}"
