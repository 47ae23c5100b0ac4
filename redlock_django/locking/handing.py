"""The hand-on of a held lock: what is checked and sent, and the ticket.

A ticket is signed, and bound to an alias and its servers. It passes through queues and their logs.
It has the names, the fences and the times of a lock, a random number, and the token of the lock,
hidden by a mask that is made of that number and the key of the signature: a reader of the ticket
does not learn the token, and only a process that has the key can use the ticket.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.signing import BadSignature, Signer
from django.utils.crypto import salted_hmac
from django.views.decorators.debug import sensitive_variables

from redlock_django.engine.refusal import refused_ticket
from redlock_django.engine.validity import Lease, with_drift
from redlock_django.exceptions import AlreadyHeld, BadTicket, InvalidRedlock
from redlock_django.locking import reports
from redlock_django.locking.arguments import LockArguments
from redlock_django.locking.names import TICKET
from redlock_django.locking.services import locks

if TYPE_CHECKING:
    from redlock_django.locking.lease import HeldLease

_SALT = "redlock_django.ticket"


@dataclass(frozen=True, slots=True)
class Ticket:
    """The contents of a ticket: the alias, and the lease to take (see `BaseBackend.acquire`)."""

    using: str
    lease: Lease


@sensitive_variables()
def read_ticket(text: object) -> Ticket | BadTicket:
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
        return _checked(about, _masked(about["token"], about["number"], key))
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


def _masked(token: str, number: str, key: str) -> str:
    """Return a token hidden by a mask that is made with the key, or the token hidden so."""
    mask = salted_hmac(f"{_SALT}.token", number, secret=key, algorithm="sha256").digest()[:16]
    return f"{int(token, 16) ^ int.from_bytes(mask):032x}"


def _hash(identity: str) -> str:
    # The name of a server is nobody's business who reads a queue.
    return sha256(identity.encode()).hexdigest()[:16]


class Handing:
    """The hand-on of one lease, which is held, by a lock: its token is replaced in the store.

    `handed` is the lease with the new token, which the client with the ticket takes.
    Raises AlreadyHeld if other locks share the lease: their code would go on without it. That of a
    decorator does not count, since it does no more than release it. Raises InvalidRedlock where
    a lock cannot be handed on, and ValueError for a bad `ttl`.
    """

    def __init__(
        self,
        lock: object,
        held_lease: HeldLease,
        arguments: LockArguments,
        ttl: float | timedelta | None,
    ) -> None:
        service = locks[arguments.using]
        self.backend = held_lease.backend
        self.held_lease = held_lease
        names = arguments.names
        if not self.backend.hands_on:
            raise InvalidRedlock(
                f"REDLOCK[{arguments.using!r}]: its BACKEND cannot hand a lock on. Leave out "
                "transfer() and acquire the lock in the task, or use another alias"
            )
        others = [one for one in held_lease.lock_objects() if one is not lock]
        if any(not one.is_of_call for one in others):
            raise AlreadyHeld(
                f"{names}: another lock() of this task or thread shares this lock, and would go on "
                "without it. Call transfer() on the outer one, after the inner one was released",
                resource=names,
            )
        limits = service.settings
        seconds = limits.store.max_ttl if ttl is None else limits.check_ttl(ttl)
        self.lease = held_lease.lease
        left = self.lease.held_for(self.backend.clock)
        # A hand-on never shortens a lock.
        self.ttl = max(seconds, with_drift(max(left, held_lease.seconds_left())))
        self.holder = arguments.holder_json(handed_on=left)
        self.handed: Lease | None = None

    def __repr__(self) -> str:
        return f"<Handing of {', '.join(self.lease.names)!r}>"

    def hand_on(self) -> None:
        """Hand the lease on in the store. Raises LockLost, StoreUnavailable."""
        lease = self.lease
        self.handed = self.backend.acquire(
            lease.names, self.ttl, 0.0, self.holder, lease.limit, lease
        )
        self._refuse_lost()

    async def ahand_on(self) -> None:
        """Hand the lease on as `hand_on` does, on the running loop."""
        lease = self.lease
        self.handed = await self.backend.aacquire(
            lease.names, self.ttl, 0.0, self.holder, lease.limit, lease
        )
        self._refuse_lost()

    def _refuse_lost(self) -> None:
        """Release what was handed on after the end of the lease, and raise LockLost.

        It may have been extended meanwhile: then it is not over.
        """
        now = self.backend.clock()
        if now >= self.held_lease.lease.until or self.held_lease.loss_reason:
            assert self.handed is not None
            self.backend.post_release(self.handed)
            self.handed = None
            raise refused_ticket(self.lease, is_used=False)

    def ticket(self) -> str:
        """End the hold, since the lease was handed on; return the ticket."""
        held_lease, handed = self.held_lease, self.handed
        assert handed is not None
        held_lease.mark_handed_on(handed)
        self._release_rest()
        givers = (*self.lease.givers, self.lease.fingerprint)
        return self._signed(replace(handed, givers=givers))

    def _release_rest(self) -> None:
        """Release the giver's token where the store still has it, and its waiter in a queue.

        The token may have been set again by an extension meanwhile, where it had been forgotten.
        """
        lease = self.held_lease.lease
        # Without the rest of a minimum hold, which goes with the lock.
        self.backend.post_release(replace(lease, earliest_end=lease.started))

    def _signed(self, handed: Lease) -> str:
        """Return the ticket of the lease that was handed on."""
        backend, number = self.backend, secrets.token_hex(16)
        about = {
            "using": backend.alias,
            "store": _hash(backend.settings.identity),
            "number": number,
            "token": _masked(handed.token, number, settings.SECRET_KEY),
            "resources": handed.resources,
            "fences": handed.fences,
            "limit": handed.limit,
            "givers": handed.givers,
            "left": round(handed.until - backend.clock(), 3),
            "min_hold": round(handed.held_for(backend.clock), 3),
            "ends": handed.ends,
        }
        return TICKET + _signer(settings.SECRET_KEY).sign_object(about)

    def discard(self) -> None:
        """Release the lease if it was handed on: its ticket was lost by an interrupt.

        Otherwise the store has not handed it on, or has undone that: the lock is what it was.
        """
        if self.handed is None:
            return
        held_lease = self.held_lease
        is_reported = held_lease.handed is not None
        # First: from here on, nothing renews the lease, whatever happens.
        held_lease.mark_released(self.backend.clock())
        held_lease.handed = None
        self.backend.post_release(self.handed)
        self.backend.post_release(held_lease.lease)
        if not is_reported:
            reports.released(held_lease, None)
