"""A Django cache as a store of idempotency records."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.core.cache import caches
from django.utils import timezone

from redlock_django.exceptions import IdempotencyUnavailable
from redlock_django.idempotency.key import Claim
from redlock_django.idempotency.protocol import UNRESOLVED, RecordState
from redlock_django.idempotency.stores.base import AlreadyRecorded, Record, Store, UnresolvedRequest
from redlock_django.idempotency.stores.encryption import ResponseCipher, decrypted
from redlock_django.idempotency.stores.response import StoredResponse

logger = logging.getLogger("redlock_django")


class CacheStore(Store):
    """Two cache entries for each key: a small one for the state, and one for the response.

    The small entry outlives the response, which may expire or be evicted. A third one says that the
    outcome of an attempt is uncertain. A cache has no compare-and-set, so this entry is separate: a
    view that completes late does not lose its response to a retry that marks it uncertain.
    """

    lists_records = False

    def __init__(
        self,
        alias: str,
        *,
        retention: timedelta,
        tombstone_retention: timedelta,
        cipher: ResponseCipher | None = None,
    ) -> None:
        self._cache = caches[alias]
        self._retention = retention
        self._tombstone_retention = tombstone_retention
        self._cipher = cipher

    def find(self, claim: Claim) -> Record | None:
        hashes = [each.key_hash for each in claim.hashes]
        found = self._call("get_many", [key for key_hash in hashes for key in _keys(key_hash)])
        for key_hash in hashes:
            if (entry := _entry_in(found, key_hash)) is None:
                continue
            state, response = entry["state"], None
            if state == RecordState.COMPLETED:
                response = self._loaded(key_hash, found.get(_keys(key_hash).response))
                state = state if response is not None else RecordState.TOMBSTONE
            expires = entry.get("expires")
            at = None if expires is None else datetime.fromisoformat(expires)
            status = claim.status_of(key_hash, entry["fingerprint"], state, at)
            return Record(key_hash, entry["attempt"], status, response)
        return None

    def admit(self, claim: Claim, *, most: int, window: timedelta) -> float:
        # Fixed windows, because a cache can count records, but not list those since a time.
        seconds = window.total_seconds()
        number, passed = divmod(timezone.now().timestamp(), seconds)
        key = f"redlock-idempotency:{claim.owner}:{seconds:g}:{number:.0f}"
        if self._call("add", key, 1, seconds) or self._call("incr", key) <= most:
            return 0.0
        return seconds - passed

    def begin(self, claim: Claim, *, instead_of: Record | None = None) -> None:
        if instead_of is not None and self._entry_of_attempt(
            instead_of.key_hash, instead_of.attempt, *RecordState
        ):
            self._call("delete_many", _keys(instead_of.key_hash))
        if self._write("add", claim.key_hash, _new_entry(claim), claim.retention):
            return
        if self._entry(claim.key_hash) is not None:
            raise AlreadyRecorded
        # A cache may be configured to ignore its errors.
        raise IdempotencyUnavailable("the cache did not store the record")

    def complete(self, claim: Claim, status: int, response: StoredResponse | None) -> bool:
        entry = self._entry(claim.key_hash)
        # A cache may have evicted the entry of this attempt; then `add` fails if there is another.
        write = "set" if entry is not None else "add"
        entry = entry or _new_entry(claim)
        if entry["attempt"] != claim.attempt or entry["state"] not in UNRESOLVED:
            return False
        if response is not None:
            text = self._dumped(claim.key_hash, response)
            seconds = claim.retention.total_seconds()
            self._call("set", _keys(claim.key_hash).response, text, seconds)
        entry["state"] = RecordState.TOMBSTONE if response is None else RecordState.COMPLETED
        entry["expires"] = (timezone.now() + claim.retention).isoformat()
        self._write(write, claim.key_hash, entry, claim.retention)
        return True

    def _dumped(self, key_hash: str, response: StoredResponse) -> str:
        if self._cipher is None:
            return response.dumps()
        return self._cipher.encrypt(key_hash, response)

    def _loaded(self, key_hash: str, text: str | None) -> StoredResponse | None:
        if text is None:
            return None
        # A response in plain text is a JSON object, and an encrypted one is base64.
        if text.startswith("{"):
            return StoredResponse.loads(text)
        return decrypted(self._cipher, key_hash, text)

    def delete(self, claim: Claim) -> None:
        if self._entry_of_attempt(claim.key_hash, claim.attempt, *UNRESOLVED) is not None:
            self._call("delete_many", _keys(claim.key_hash))

    def mark_uncertain(self, key_hash: str, attempt: str) -> None:
        entry = self._entry_of_attempt(key_hash, attempt, RecordState.RUNNING)
        if entry is not None:
            lifetime = self._lifetime(self._retention)
            self._call("set", _keys(key_hash).uncertain, attempt, lifetime)

    def unresolved(self, prefix: str = "") -> list[UnresolvedRequest]:
        entry = self._entry(prefix)
        if entry is None or entry["state"] not in UNRESOLVED:
            return []
        values = {name: entry[name] for name in ("attempt", "user", "method", "path")}
        return [UnresolvedRequest(key_hash=prefix, state=RecordState(entry["state"]), **values)]

    def forget_expired_responses(self) -> None:
        """Do nothing: the cache deletes the responses itself."""

    def resolve(self, key_hash: str, *, applied: bool, attempt: str | None = None) -> bool:
        entry = self._entry(key_hash)
        if entry is None or entry["state"] != RecordState.UNCERTAIN:
            return False
        if attempt not in (None, entry["attempt"]):
            return False
        if applied:
            expires = timezone.now() + self._retention
            entry.update(state=RecordState.TOMBSTONE, expires=expires.isoformat())
            self._write("set", key_hash, entry, self._retention)
        else:
            self._call("delete_many", _keys(key_hash))
        return True

    def _entry(self, key_hash: str) -> dict[str, Any] | None:
        keys = _keys(key_hash)
        return _entry_in(self._call("get_many", [keys.state, keys.uncertain]), key_hash)

    def _entry_of_attempt(
        self, key_hash: str, attempt: str, *states: RecordState
    ) -> dict[str, Any] | None:
        entry = self._entry(key_hash)
        if entry is None or entry["attempt"] != attempt or entry["state"] not in states:
            return None
        return entry

    def _write(
        self, method: str, key_hash: str, entry: dict[str, Any], retention: timedelta
    ) -> Any:
        lifetime = self._lifetime(retention)
        return self._call(method, _keys(key_hash).state, json.dumps(entry), lifetime)

    def _lifetime(self, retention: timedelta) -> float:
        return (retention + self._tombstone_retention).total_seconds()

    def _call(self, method: str, *args: Any) -> Any:
        """Call a method of the cache; raise IdempotencyUnavailable if it fails."""
        try:
            return getattr(self._cache, method)(*args)
        except Exception as error:
            logger.error("idempotency: the cache failed: %s", type(error).__name__)
            raise IdempotencyUnavailable from error


class _Keys(NamedTuple):
    """The keys in the cache: of the state, of the response, and of the attempt in doubt."""

    state: str
    response: str
    uncertain: str


def _keys(key_hash: str) -> _Keys:
    return _Keys(*(f"redlock-idempotency:{key_hash}:{name}" for name in _Keys._fields))


def _new_entry(claim: Claim) -> dict[str, Any]:
    return {
        "state": RecordState.RUNNING,
        "fingerprint": claim.hashes[0].fingerprint,
        "attempt": claim.attempt,
        "user": claim.user,
        "method": claim.method,
        "path": claim.path,
    }


def _entry_in(found: Mapping[str, Any], key_hash: str) -> dict[str, Any] | None:
    """Return the entry of a key among those of the cache; its state may be in doubt."""
    keys = _keys(key_hash)
    if (text := found.get(keys.state)) is None:
        return None
    entry: dict[str, Any] = json.loads(text)
    is_in_doubt = entry["attempt"] == found.get(keys.uncertain)
    if entry["state"] == RecordState.RUNNING and is_in_doubt:
        entry["state"] = RecordState.UNCERTAIN
    return entry
