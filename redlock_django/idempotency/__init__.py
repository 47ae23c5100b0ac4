"""`@idempotent`: a request that is sent several times takes effect once.

`protocol` decides whether a request runs, is replayed or is refused. It decides from the record of
the idempotency key, and from whether the lock of the key is held. The rules of this package:

1. The view is committed if and only if its record is. Where the view has a transaction, the record
   is written in that transaction.
2. A request that may have taken effect, and that is not recorded as completed, is never run again.
   It is uncertain, and a retry is answered so.
3. The lock decides whether a request is still running. The unique row is the protection if the
   lock ever fails.
4. A key, a body, and everything derived from them leave the process only as an HMAC with
   SECRET_KEY.
"""
