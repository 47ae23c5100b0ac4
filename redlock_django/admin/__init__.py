"""The admin of held locks and idempotency records.

On a custom AdminSite, call `site.register(HeldLock, HeldLockAdmin)` and
`site.register(IdempotencyRecord, IdempotencyRecordAdmin)`.
"""

from __future__ import annotations

from django.contrib import admin

from redlock_django.admin.held_locks import HeldLockAdmin
from redlock_django.admin.idempotency_records import IdempotencyRecordAdmin
from redlock_django.models import HeldLock, IdempotencyRecord

__all__ = ["HeldLockAdmin", "IdempotencyRecordAdmin"]

admin.site.register(HeldLock, HeldLockAdmin)
admin.site.register(IdempotencyRecord, IdempotencyRecordAdmin)
