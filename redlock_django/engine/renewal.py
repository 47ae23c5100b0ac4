"""When to extend next, for how long, and when to stop."""

from __future__ import annotations

from redlock_django.engine.validity import Lease, LeaseState, drift

SHORTEST = 0.1  # an extension below this is not worth a round: it is used up by the drift


def next_extension(
    lease: Lease,
    now: float,
    *,
    ttl: float,
    hold_until: float,
    state: LeaseState = LeaseState.RENEWED,
) -> tuple[float, float] | None:
    """When to extend a lease next and the TTL to ask for, or None to let it run out.

    A third of the TTL after the last success; after a round that found out nothing,
    sooner and sooner, so that a short outage is survived. `ttl` is what the holder asked
    for; no extension reaches beyond `hold_until`, a moment of the driver's clock.
    """
    if state is LeaseState.UNKNOWN:
        when = now + max((lease.until - now) / 4, 0.005)
    else:
        when = max(now, lease.started + lease.ttl / 3)
    asked = min(ttl, hold_until - when)
    if when >= lease.until or asked < SHORTEST or when + asked - drift(asked) <= lease.until:
        return None
    return when, asked
