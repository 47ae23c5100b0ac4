"""Orders, and the ledger of what was paid for them."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """Something to be paid once; amounts are whole cents."""

    class State(models.TextChoices):
        """What can be done with an order."""

        OPEN = "open", "open"
        PAID = "paid", "paid"

    number = models.CharField(max_length=20, unique=True)
    total = models.PositiveIntegerField(help_text="in cents")
    state = models.CharField(max_length=8, choices=State, default=State.OPEN)

    def __str__(self) -> str:
        return self.number

    @property
    def amount(self) -> str:
        """The total as people write it."""
        return f"€ {self.total / 100:.2f}"


class Payment(models.Model):
    """One line of the ledger.

    There is deliberately no unique constraint on `order`: only the lock keeps the ledger right,
    so a lock that fails shows.
    """

    order = models.ForeignKey(Order, on_delete=models.PROTECT, related_name="payments")
    amount = models.PositiveIntegerField(help_text="in cents")
    at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.order}: {self.amount}"
