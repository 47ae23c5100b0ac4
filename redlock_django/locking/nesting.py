"""Nested locks: whether a lock shares the lease of one that its caller holds, or is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redlock_django.exceptions import AlreadyHeld, LockLost
from redlock_django.locking.arguments import LockArguments
from redlock_django.locking.lease import HeldLease

if TYPE_CHECKING:
    from redlock_django.engine.validity import Lease


def lease_to_share(found: dict[str, HeldLease], arguments: LockArguments) -> HeldLease | None:
    """Return which of the caller's leases its next lock shares; None if it has lost all of them.

    Raises AlreadyHeld if sharing is not allowed or one lease does not have all resources, and
    LockLost if the lease to share was lost.
    """
    outer = {name: one for name, one in found.items() if _is_held(one, arguments, name)}
    if not outer:
        return None
    names = ", ".join(outer)
    held_lease, *others = set(outer.values())
    _refuse_in_min_hold(held_lease, arguments, names)
    if (limit := held_lease.lease.limit) != arguments.limit:
        raise AlreadyHeld(
            f"{names}: this task or thread holds it already, with limit={limit}; it holds one slot "
            f"of a name at most, and cannot acquire it with limit={arguments.limit}. "
            f"lock(..., limit={limit}, reentrant=True) nests in the outer lock",
            resource=names,
        )
    is_kept = held_lease.is_kept
    shares = arguments.reentrant or is_kept
    if not shares or others or set(arguments.resources) - {*held_lease.lease.names}:
        raise AlreadyHeld(
            f"{names}: this task or thread holds it already"
            f"{', until the open transaction has ended' if is_kept else ''}; "
            "lock(..., reentrant=True) nests in one outer lock that holds all the same "
            "resources",
            resource=names,
        )
    return held_lease


def refuse_own(held_lease: HeldLease, arguments: LockArguments) -> None:
    """Raise AlreadyHeld if the Lock object that is to be acquired holds its lease already."""
    if held_lease.seconds_left():
        raise AlreadyHeld(
            f"{arguments.names}: this Lock object holds it already; make another one, with "
            "reentrant=True if it is meant to be nested",
            resource=arguments.names,
        )


def refuse_to_retake(held_lease: HeldLease, arguments: LockArguments) -> None:
    """Raise LockLost or AlreadyHeld if what a transaction keeps may not be acquired again."""
    _refuse_lost(held_lease, arguments.names)
    if not held_lease.inherited:
        _refuse_in_min_hold(held_lease, arguments, arguments.names)


def refuse_other_slot(found: dict[str, HeldLease], handed: Lease) -> None:
    """Raise AlreadyHeld if the caller holds another slot of the name of a slot that it takes."""
    for name, held_lease in found.items():
        if held_lease.lease.slot != handed.slot and held_lease.seconds_left():
            raise AlreadyHeld(
                f"{name}: this task or thread holds another slot of it, and one at most. Release "
                "that slot first: the ticket is still good",
                resource=name,
            )


def _is_held(held_lease: HeldLease, arguments: LockArguments, name: str) -> bool:
    """Return whether a lease is held; raise LockLost if it was lost, and was to be shared."""
    if held_lease.seconds_left():
        return True
    if held_lease.lock_objects() and (arguments.reentrant or held_lease.is_kept):
        _refuse_lost(held_lease, name)
    return False


def _refuse_lost(held_lease: HeldLease, names: str) -> None:
    """Raise LockLost if a lease was lost that the caller has not released.

    A lock instead of it would not protect what was done under the lost one.
    """
    held_lease.seconds_left()  # notices that the lease has expired
    if held_lease.loss_reason:
        why = f"the lock was lost: {held_lease.loss_reason}"
        raise LockLost(f"{names}: {why}", resource=names)


def _refuse_in_min_hold(held_lease: HeldLease, arguments: LockArguments, names: str) -> None:
    """Raise AlreadyHeld if sharing this lease would break a promise of `min_hold`."""
    lease = held_lease.lease
    if arguments.min_hold:
        why = "pass min_hold to the outer lock: an inner lock does not prolong it"
    elif held_lease.is_kept and (left := lease.held_for(held_lease.backend.clock)):
        why = f"it was released, and min_hold is over in {left:.3g} s"
    else:
        return
    raise AlreadyHeld(
        f"{names}: this task or thread holds it already; {why}", resource=arguments.names
    )
