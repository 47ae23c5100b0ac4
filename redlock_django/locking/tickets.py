"""The tickets of locks that are handed on: signed, and bound to an alias and its servers.

A ticket passes through queues and their logs. It has the names, the fences and the times of a lock,
and a random number. The token of the lock is made of that number and the key of the signature: a
reader of the ticket does not learn it, and only a process that has the key can use the ticket.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from django.conf import settings
from django.core.signing import BadSignature, Signer
from django.utils.crypto import salted_hmac
from django.views.decorators.debug import sensitive_variables

from redlock_django.engine.validity import Lease
from redlock_django.exceptions import BadTicket
from redlock_django.locking.names import TICKET
from redlock_django.locking.services import LockService, locks

_SALT = "redlock_django.ticket"


@dataclass(frozen=True, slots=True)
class Ticket:
    """The contents of a ticket: the alias, and the lease to take (see `BaseBackend.resume`)."""

    using: str
    lease: Lease


class Passage:
    """The number and the token of a lease that is about to be handed on."""

    def __init__(self) -> None:
        self._number = secrets.token_hex(16)
        self.token = _token(self._number, settings.SECRET_KEY)

    def ticket(self, service: LockService, handed: Lease) -> str:
        """Return the ticket of a lease that was handed on with this token."""
        backend = service.backend
        about = {
            "using": backend.alias,
            "store": _hash(backend.settings.identity),
            "number": self._number,
            "resources": handed.resources,
            "fences": handed.fences,
            "limit": handed.limit,
            "givers": handed.givers,
            "left": round(handed.until - backend.clock(), 3),
            "min_hold": round(handed.held_for(backend.clock), 3),
            "ends": handed.ends,
        }
        return TICKET + _signer(settings.SECRET_KEY).sign_object(about)


@sensitive_variables()
def read(text: object) -> Ticket | BadTicket:
    """Return what a ticket says, or the error for one that is not valid.

    It is not raised here, so that no traceback shows the ticket. Raises InvalidRedlock if the
    settings are wrong.
    """
    if not isinstance(text, str) or not text.startswith(TICKET):
        kind = "a string" if isinstance(text, str) else type(text).__name__
        return BadTicket(
            f"resume_lock() needs the ticket that transfer() returned, got {kind} that is none. "
            "With a name, write lock(name)"
        )
    for key in _keys():
        try:
            about = _signer(key).unsign_object(text.removeprefix(TICKET))
        except BadSignature:
            continue
        return _checked(about, _token(about["number"], key))
    return BadTicket(
        "this ticket was changed, or signed with another key: this process needs the SECRET_KEY of "
        "the one that has handed the lock on, or has it in SECRET_KEY_FALLBACKS"
    )


def _checked(about: dict[str, Any], token: str) -> Ticket | BadTicket:
    using, names = about["using"], ", ".join(about["resources"])
    if using not in set(locks):
        return BadTicket(
            f"{names}: this ticket is of the alias {using!r}, which REDLOCK does not have here. "
            "Give both processes the same REDLOCK",
            resource=names,
        )
    backend = locks[using].backend
    if about["store"] != _hash(backend.settings.identity):
        return BadTicket(
            f"{names}: this ticket is of another deployment: REDLOCK[{using!r}] has other servers "
            "here than in the process that handed the lock on. Give both the same",
            resource=names,
        )
    lease = Lease(
        tuple(about["resources"]), token, "", 0.0, 0.0, about["left"], tuple(about["fences"]),
        earliest_end=about["min_hold"], limit=about["limit"], givers=tuple(about["givers"]),
        ends=about["ends"],
    )  # fmt: skip
    return Ticket(using, lease)


def _keys() -> list[Any]:
    return [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]


def _signer(key: str) -> Signer:
    return Signer(key=key, salt=_SALT, fallback_keys=[])


def _token(number: str, key: str) -> str:
    made = salted_hmac(f"{_SALT}.token", number, secret=key, algorithm="sha256")
    return made.hexdigest()[:32]


def _hash(identity: str) -> str:
    # The name of a server is nobody's business who reads a queue.
    return sha256(identity.encode()).hexdigest()[:16]
