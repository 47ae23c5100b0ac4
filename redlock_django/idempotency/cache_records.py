"""A Django cache as the place where it is written which keys were used."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.core.cache import caches
from django.utils import timezone

from redlock_django.idempotency.errors import IdempotencyUnavailable
from redlock_django.idempotency.protocol import RecordState
from redlock_django.idempotency.records import Beaten, Claim, Record, Store, Unsettled
from redlock_django.idempotency.replay import Stored

logger = logging.getLogger("redlock_django")


class CacheStore(Store):
    """Two entries of a Django cache for each key: a small one for its state, one for the response.

    The small one lives on when the response has expired, or was evicted.
    """

    def __init__(self, alias: str, *, retention: timedelta, tombstone_retention: timedelta) -> None:
        self._cache = caches[alias]
        self._retention = retention
        self._tombstone_retention = tombstone_retention

    def find(self, claim: Claim) -> Record | None:
        hashes = [seal.key_hash for seal in claim.seals]
        entries = self._asked("get_many", [f(k) for k in hashes for f in (_state_key, _body_key)])
        for key_hash in hashes:
            if (text := entries.get(_state_key(key_hash))) is None:
                continue
            entry = json.loads(text)
            body = entries.get(_body_key(key_hash))
            stored = (
                Stored.loads(body) if body and entry["state"] == RecordState.COMPLETED else None
            )
            state = entry["state"]
            if state == RecordState.COMPLETED and stored is None:
                state = RecordState.TOMBSTONE
            expires = entry.get("expires")
            at = None if expires is None else datetime.fromisoformat(expires)
            known = claim.known(key_hash, entry["fingerprint"], state, at)
            return Record(key_hash, entry["attempt"], known, stored)
        return None

    def begin(self, claim: Claim, *, instead_of: Record | None = None) -> None:
        if instead_of is not None:
            self._asked("delete_many", _keys(instead_of.key_hash))
        entry = _entry_of(claim)
        added = self._asked("add", _state_key(claim.key_hash), json.dumps(entry), self._keep(claim))
        if added:
            return
        if self._entry(claim.key_hash) is not None:
            raise Beaten
        # Some caches are set up to swallow their errors.
        raise IdempotencyUnavailable("the cache did not take the record")

    def complete(self, claim: Claim, status: int, stored: Stored | None) -> bool:
        entry = self._entry(claim.key_hash)
        # A cache may have forgotten what nobody but us knows.
        write = "set" if entry is not None else "add"
        entry = entry or _entry_of(claim)
        running = entry["state"] in (RecordState.RUNNING, RecordState.UNCERTAIN)
        if entry["attempt"] != claim.attempt or not running:
            return False
        if stored is not None:
            seconds = claim.retention.total_seconds()
            self._asked("set", _body_key(claim.key_hash), stored.dumps(), seconds)
        entry["state"] = RecordState.TOMBSTONE if stored is None else RecordState.COMPLETED
        entry["expires"] = (timezone.now() + claim.retention).isoformat()
        text = json.dumps(entry)
        self._asked(write, _state_key(claim.key_hash), text, self._keep(claim))
        return True

    def forget(self, claim: Claim) -> None:
        if (
            self._ours(claim.key_hash, claim.attempt, RecordState.RUNNING, RecordState.UNCERTAIN)
            is not None
        ):
            self._asked("delete_many", _keys(claim.key_hash))

    def doubt(self, key_hash: str, attempt: str) -> None:
        entry = self._ours(key_hash, attempt, RecordState.RUNNING)
        if entry is not None:
            entry["state"] = RecordState.UNCERTAIN
            # Until somebody resolves it.
            self._asked("set", _state_key(key_hash), json.dumps(entry), None)

    def unsettled(self, beginning: str = "") -> list[Unsettled]:
        entry = self._entry(beginning)
        if entry is None or entry["state"] not in (RecordState.RUNNING, RecordState.UNCERTAIN):
            return []
        told = {name: entry[name] for name in ("attempt", "user", "method", "path")}
        return [Unsettled(key_hash=beginning, state=RecordState(entry["state"]), **told)]

    def resolve(self, key_hash: str, *, applied: bool, attempt: str | None = None) -> bool:
        entry = self._entry(key_hash)
        if entry is None or entry["state"] != RecordState.UNCERTAIN:
            return False
        if attempt not in (None, entry["attempt"]):
            return False
        if applied:
            expires = timezone.now() + self._retention
            entry.update(state=RecordState.TOMBSTONE, expires=expires.isoformat())
            keep = (self._retention + self._tombstone_retention).total_seconds()
            self._asked("set", _state_key(key_hash), json.dumps(entry), keep)
        else:
            self._asked("delete_many", _keys(key_hash))
        return True

    def _keep(self, claim: Claim) -> float:
        return (claim.retention + self._tombstone_retention).total_seconds()

    def _entry(self, key_hash: str) -> dict[str, Any] | None:
        text = self._asked("get", _state_key(key_hash))
        return None if text is None else json.loads(text)

    def _ours(self, key_hash: str, attempt: str, *states: RecordState) -> dict[str, Any] | None:
        entry = self._entry(key_hash)
        if entry is None or entry["attempt"] != attempt or entry["state"] not in states:
            return None
        return entry

    def _asked(self, method: str, *args: Any) -> Any:
        try:
            return getattr(self._cache, method)(*args)
        except Exception as error:
            logger.error("idempotency: the cache cannot be asked: %s", type(error).__name__)
            raise IdempotencyUnavailable from error


def _entry_of(claim: Claim) -> dict[str, Any]:
    return {
        "state": RecordState.RUNNING,
        "fingerprint": claim.seals[0].fingerprint,
        "attempt": claim.attempt,
        "user": claim.user,
        "method": claim.method,
        "path": claim.path,
    }


def _state_key(key_hash: str) -> str:
    return f"redlock-idempotency:{key_hash}:state"


def _body_key(key_hash: str) -> str:
    return f"redlock-idempotency:{key_hash}:response"


def _keys(key_hash: str) -> Sequence[str]:
    return [_state_key(key_hash), _body_key(key_hash)]
