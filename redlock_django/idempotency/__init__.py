"""`@idempotent`: a request that may be sent again takes effect once.

Whether to run, replay or refuse is decided in `protocol`, from what is recorded and whether the
key's lock is held. House rules:

1. Commit <=> record. Where the view has a transaction, its record is written in it.
2. What may have had an effect and is not recorded as completed is never run again: it is uncertain,
   and that is said.
3. The lock says whether a request is still running; the unique row is there if the lock ever fails.
4. A key, a body and what derives from them leave the process only as an HMAC with SECRET_KEY.
"""

from __future__ import annotations

from redlock_django.idempotency import registration as registration
