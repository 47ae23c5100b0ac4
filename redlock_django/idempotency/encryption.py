"""Encryption of stored responses with `ENCRYPTION_KEYS`."""

from __future__ import annotations

import json
import logging
from typing import Any

from redlock_django.idempotency.response import StoredResponse

logger = logging.getLogger("redlock_django")

_NEW_KEY = (
    'python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())"'
)


class ResponseCipher:
    """Encrypts a response with the first of several Fernet keys, and decrypts it with any of them.

    The package `cryptography` does both. What is encrypted contains the hash of the record's key,
    so the response of one record is not replayed from another one.
    """

    def __init__(self, keys: Any, name: str = "ENCRYPTION_KEYS") -> None:
        try:
            from cryptography.fernet import Fernet, MultiFernet
        except ImportError:
            raise ValueError(
                f"{name} needs the package cryptography: pip install 'redlock-django[encryption]'"
            ) from None
        if not isinstance(keys, (list, tuple)) or not keys:
            # Without the value, which is secret; so are the messages below.
            raise ValueError(f"{name} must be a list of Fernet keys that is not empty")
        fernets = []
        for index, key in enumerate(keys):
            try:
                fernets.append(Fernet(key))
            except (ValueError, TypeError):
                raise ValueError(
                    f"{name}[{index}] is not a Fernet key, which is 32 bytes in URL-safe "
                    f"base64. Make one: {_NEW_KEY}"
                ) from None
        self._fernet = MultiFernet(fernets)

    def encrypt(self, key_hash: str, response: StoredResponse) -> str:
        """Return a response, encrypted for the record with this key hash."""
        return self._fernet.encrypt(json.dumps([key_hash, response.dumps()]).encode()).decode()

    def decrypt(self, key_hash: str, token: str | bytes) -> StoredResponse | None:
        """Return the response, or None if no key fits, or if it belongs to another record."""
        from cryptography.fernet import InvalidToken

        try:
            of, text = json.loads(self._fernet.decrypt(token))
        except (InvalidToken, ValueError, TypeError):  # or the key has encrypted another value
            return None
        return StoredResponse.loads(text) if of == key_hash else None


def decrypted(
    cipher: ResponseCipher | None, key_hash: str, token: str | bytes
) -> StoredResponse | None:
    """Return an encrypted response, or None if the settings have no key for it, which is logged."""
    response = None if cipher is None else cipher.decrypt(key_hash, token)
    if response is None:
        logger.error(
            "idempotency: the response of record %s cannot be decrypted with ENCRYPTION_KEYS. "
            "Retries are answered 409 until the key with which it was encrypted is in the list",
            key_hash[:8],
        )
    return response
