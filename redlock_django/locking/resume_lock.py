"""`resume_lock()`: take a lock that another process has handed on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from django.views.decorators.debug import sensitive_variables

from redlock_django.exceptions import BadTicket
from redlock_django.locking.handing import read_ticket
from redlock_django.locking.lock import Lock


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
    found = read_ticket(ticket)
    ticket = ""  # so that no traceback shows it
    if isinstance(found, BadTicket):
        raise found
    lease = found.lease
    resumed = Lock(
        *lease.names,
        using=found.using,
        ttl=ttl,
        wait=0,
        renew=renew,
        until_commit=until_commit,
        holder=holder,
        limit=lease.limit,
    )
    resumed._arguments.keep_for(lease.earliest_end)
    resumed._given = lease
    # Without the lock, whatever ON_UNAVAILABLE says, another client may have it.
    resumed._strict = True
    return resumed
