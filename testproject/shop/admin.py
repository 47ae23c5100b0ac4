"""Orders and payments in the admin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin

from redlock_django.contrib.edit_locks import EditLockMixin
from testproject.shop.models import Order, Payment

if TYPE_CHECKING:
    _OrderAdmin = admin.ModelAdmin[Order]
    _PaymentAdmin = admin.ModelAdmin[Payment]
else:
    _OrderAdmin = _PaymentAdmin = admin.ModelAdmin


@admin.register(Order)
class OrderAdmin(EditLockMixin, _OrderAdmin):
    """List orders with their total and state. No editor overwrites what another has saved."""

    list_display = ("number", "total", "state")
    list_filter = ("state",)
    search_fields = ("number",)


@admin.register(Payment)
class PaymentAdmin(_PaymentAdmin):
    """List the payments of the ledger."""

    list_display = ("order", "amount", "at")
