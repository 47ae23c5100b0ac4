"""The lease of an outer lock, and whether a lock that is acquired inside it may share it."""

from __future__ import annotations

from redlock_django.exceptions import AlreadyHeld, LockLost
from redlock_django.locking.held_lease import HeldLease
from redlock_django.locking.parameters import LockParameters


def refuse_to_retake(held_lease: HeldLease, parameters: LockParameters) -> None:
    """Raise LockLost or AlreadyHeld if what a transaction keeps may not be acquired again."""
    _refuse_lost(held_lease, parameters.names)
    if not held_lease.inherited:
        _refuse_in_min_hold(held_lease, parameters, parameters.names)


def refuse_own(held_lease: HeldLease, parameters: LockParameters) -> None:
    """Raise AlreadyHeld if the Lock object that is to be acquired holds its lease already."""
    if held_lease.seconds_left():
        raise AlreadyHeld(
            f"{parameters.names}: this Lock object holds it already; make another one, with "
            "reentrant=True if it is meant to be nested",
            resource=parameters.names,
        )


def lease_to_share(found: dict[str, HeldLease], parameters: LockParameters) -> HeldLease | None:
    """Return the lease to share of those that the caller has; None if all of them were lost.

    Raises AlreadyHeld if sharing is not allowed or one lease does not have all resources, and
    LockLost if the lease to share was lost.
    """
    outer = _unlost(found, parameters)
    if not outer:
        return None
    names = ", ".join(outer)
    held_lease, *others = set(outer.values())
    _refuse_in_min_hold(held_lease, parameters, names)
    is_kept = held_lease.is_kept
    shares = parameters.reentrant or is_kept
    if not shares or others or set(parameters.resources) - {*held_lease.lease.resources}:
        raise AlreadyHeld(
            f"{names}: this task or thread holds it already"
            f"{', until the open transaction has ended' if is_kept else ''}; "
            "lock(..., reentrant=True) nests in one outer lock that holds all the same "
            "resources",
            resource=names,
        )
    return held_lease


def _unlost(found: dict[str, HeldLease], parameters: LockParameters) -> dict[str, HeldLease]:
    """Return the leases that are held; raise LockLost if one was lost that was to be shared."""
    outer = {}
    for resource, held_lease in found.items():
        if held_lease.seconds_left():
            outer[resource] = held_lease
        elif held_lease.lock_objects() and (parameters.reentrant or held_lease.is_kept):
            _refuse_lost(held_lease, resource)
    return outer


def _refuse_lost(held_lease: HeldLease, names: str) -> None:
    """Raise LockLost if a lease was lost that the caller has not released.

    A lock instead of it would not protect what was done under the lost one.
    """
    held_lease.seconds_left()  # notices that the lease has expired
    if held_lease.loss_reason:
        why = f"the lock was lost: {held_lease.loss_reason}"
        raise LockLost(f"{names}: {why}", resource=names)


def _refuse_in_min_hold(held_lease: HeldLease, parameters: LockParameters, names: str) -> None:
    """Raise AlreadyHeld if sharing this lease would break a promise of `min_hold`."""
    lease = held_lease.lease
    if parameters.min_hold:
        why = "pass min_hold to the outer lock: an inner lock does not prolong it"
    elif held_lease.is_kept and (left := lease.held_for(held_lease.backend.clock)):
        why = f"it was released, and min_hold is over in {left:.3g} s"
    else:
        return
    raise AlreadyHeld(
        f"{names}: this task or thread holds it already; {why}", resource=parameters.names
    )
