"""Orders, and the ledger of their payments."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order that must be paid once. Amounts are whole cents."""

    class State(models.TextChoices):
        """True if an order has been paid."""

        OPEN = "open", "open"
        PAID = "paid", "paid"

    number = models.CharField(max_length=20, unique=True)
    total = models.PositiveIntegerField(help_text="in cents")
    state = models.CharField(max_length=8, choices=State, default=State.OPEN)

    def __str__(self) -> str:
        return self.number

    @property
    def amount(self) -> str:
        """The total in euros, formatted."""
        return f"€ {self.total / 100:.2f}"


class Payment(models.Model):
    """One entry of the ledger.

    `order` has no unique constraint on purpose: only the lock prevents a second payment, so a
    failure of the lock is visible.
    """

    order = models.ForeignKey(Order, on_delete=models.PROTECT, related_name="payments")
    amount = models.PositiveIntegerField(help_text="in cents")
    at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.order}: {self.amount}"
