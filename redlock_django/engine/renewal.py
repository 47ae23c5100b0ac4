"""When to extend a lease next, for how long, and when to stop."""

from __future__ import annotations

from redlock_django.engine.validity import Lease, LeaseState, drift

SHORTEST = 0.1  # seconds; an extension below this is used up by drift and not worth a round


def next_extension(
    lease: Lease,
    now: float,
    *,
    ttl: float,
    hold_until: float,
    state: LeaseState = LeaseState.RENEWED,
) -> tuple[float, float] | None:
    """Return when to extend a lease next and the TTL to ask for, or None to let it expire.

    The time is a third of the TTL after the last successful extension; after an extension with an
    unknown result the intervals get shorter and shorter, so that the lease survives a short outage.
    `ttl` is the TTL that the holder asked for. No extension reaches beyond `hold_until`, a moment
    of the driver's clock.
    """
    if state is LeaseState.UNKNOWN:
        when = now + max((lease.until - now) / 4, 0.005)
    else:
        when = max(now, lease.started + lease.ttl / 3)
    asked = min(ttl, hold_until - when)
    if when >= lease.until or asked < SHORTEST or when + asked - drift(asked) <= lease.until:
        return None
    return when, asked
