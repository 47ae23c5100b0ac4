"""The admin of held locks, forced releases and idempotency records.

On a custom AdminSite, call `site.register(HeldLock, HeldLockAdmin)`, and the same for
`ForcedRelease` and `ForcedReleaseAdmin`, `IdempotencyRecord` and `IdempotencyRecordAdmin`.
"""

from __future__ import annotations

from django.contrib import admin

from redlock_django.admin.forced_releases import ForcedReleaseAdmin
from redlock_django.admin.held_locks.pages import HeldLockAdmin
from redlock_django.admin.idempotency.records import IdempotencyRecordAdmin
from redlock_django.models import ForcedRelease, HeldLock, IdempotencyRecord

__all__ = ["ForcedReleaseAdmin", "HeldLockAdmin", "IdempotencyRecordAdmin"]

admin.site.register(HeldLock, HeldLockAdmin)
admin.site.register(ForcedRelease, ForcedReleaseAdmin)
admin.site.register(IdempotencyRecord, IdempotencyRecordAdmin)
