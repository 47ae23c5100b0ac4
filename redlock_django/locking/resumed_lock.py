"""`resume_lock()`: take a lock that another process has handed on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from django.views.decorators.debug import sensitive_variables

from redlock_django.backends.base import BaseBackend
from redlock_django.engine.validity import Lease
from redlock_django.exceptions import BadTicket
from redlock_django.locking import caller, tickets
from redlock_django.locking.lock import Lock
from redlock_django.locking.services import locks
from redlock_django.locking.tickets import Ticket


class ResumedLock(Lock):
    """The lock that a ticket hands on, taken with the first acquisition.

    It never continues without the lock, whatever ON_UNAVAILABLE says: another client may have it.
    """

    _strict = True

    def __init__(
        self,
        ticket: Ticket,
        *,
        ttl: float | timedelta | None,
        renew: bool | None,
        until_commit: bool,
        holder: Mapping[str, str] | None,
    ) -> None:
        lease = ticket.lease
        super().__init__(
            *lease.names,
            using=ticket.using,
            ttl=ttl,
            wait=0,
            renew=renew,
            until_commit=until_commit,
            holder=holder,
            limit=lease.limit,
        )
        self._parameters.keep_for(lease.earliest_end)
        self._source = _Resumption(ticket)


class _Resumption:
    """The source of the lease of a resumed lock: the ticket."""

    def __init__(self, ticket: Ticket) -> None:
        self._using = ticket.using
        self._handed = ticket.lease

    def acquire(
        self, resources: tuple[str, ...], ttl: float, wait: float, holder: str, limit: int = 1
    ) -> Lease:
        """Take the lease that was handed on."""
        return self._backend().resume(self._handed, ttl, holder)

    async def aacquire(
        self, resources: tuple[str, ...], ttl: float, wait: float, holder: str, limit: int = 1
    ) -> Lease:
        """Take it on the running loop."""
        return await self._backend().aresume(self._handed, ttl, holder)

    def _backend(self) -> BaseBackend:
        backend = locks[self._using].backend
        caller.refuse_other_slot(backend, self._handed)
        return backend


@sensitive_variables("ticket")
def resume_lock(
    ticket: str,
    *,
    ttl: float | timedelta | None = None,
    renew: bool | None = None,
    until_commit: bool = True,
    holder: Mapping[str, str] | None = None,
) -> Lock:
    """Return the lock that `held.transfer()` has handed on: `with resume_lock(ticket) as held:`.

    Entering the block takes it, with the resources, the alias and the fence that it had. A ticket
    can be used once: entering raises TicketUsed if it was used before, as by the first delivery of
    a message that is delivered twice, LockLost if its time is over, StoreUnavailable if too few
    servers answer (then try again), AlreadyHeld inside another slot of the name. The other
    arguments are those of `lock()`, and so is the lock: `async with`, `acquire()` and `aacquire()`
    take it, too, and `transfer()` hands it on again.

    Raises BadTicket for what is not a ticket of this deployment, ValueError for a bad `ttl`.
    """
    found = tickets.read(ticket)
    ticket = ""  # so that no traceback shows it
    if isinstance(found, BadTicket):
        raise found
    return ResumedLock(found, ttl=ttl, renew=renew, until_commit=until_commit, holder=holder)
