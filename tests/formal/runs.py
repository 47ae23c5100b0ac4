"""The searches: what must hold within which bounds, and the rules without which it does not."""

from __future__ import annotations

from tests.formal.spin import Run

HOLDS = (
    Run("two clients, no time passes", "TICKS=0", daily=True),
    Run("two clients, two ticks", "TICKS=2"),
    Run("three clients, no time passes", "CLIENTS=3 TICKS=0"),
    Run("a master restarts", "TICKS=1 RESTARTS=1"),
    Run("a lease is extended or healed", "TICKS=1 TTL=3 EXTENSIONS=1"),
    Run("a release overtakes its acquire", "TICKS=0 BREAKS=1"),
    Run("a message is lost", "TICKS=0 LOSSES=1"),
    Run(
        "three waiters, of which two may stop", "STOPS=2", model="queue.pml", daily=True, live=True
    ),
    Run("two slots, two clients", "CLIENTS=2 LATE=0", model="permits.pml", daily=True),
    Run("two slots, two clients, one tick", "CLIENTS=2 TICKS=1", model="permits.pml"),
    Run("two slots, three clients", "ENDINGS=1 LATE=0", model="permits.pml"),
    Run("two slots, three clients that stay", "ENDINGS=0", model="permits.pml"),
)  # fmt: skip
FAILS = (
    Run("quorum", "NO_QUORUM TICKS=0 EXCLUSION_ONLY", "a majority", daily=True),
    Run("drift", "NO_DRIFT TICKS=1 EXCLUSION_ONLY", "drift"),
    Run("delay", "NO_RESTART_DELAY TICKS=0 RESTARTS=1 EXCLUSION_ONLY", "RESTART_DELAY"),
    Run("token", "NO_TOKEN TICKS=0 ATTEMPTS=2 EXCLUSION_ONLY", "the token at a release"),
    Run("confirm", "NO_CONFIRM TICKS=0 ATTEMPTS=2", "the confirmation of a fence"),
    Run("undo", "NO_UNDO TICKS=0 CLIENTS=1", "the undo of a lost attempt"),
    Run("tombstone", "NO_TOMBSTONE TICKS=0 CLIENTS=1 BREAKS=1", "tombstones"),
    Run("turn", "NO_TURN", "turns", model="queue.pml"),
    Run("patience", "NO_PATIENCE", "an end of a turn", model="queue.pml", live=True),
    Run("ttl", "NO_TTL TICKS=2 CLIENTS=1", "the TTL"),
    Run(
        "slots", "NO_SLOTS LIMIT_ONLY ENDINGS=0 LATE=0", "slots (clients are counted)",
        model="permits.pml", daily=True,
    ),
    Run("slot-quorum", "NO_QUORUM LIMIT_ONLY ENDINGS=0 LATE=0", "a majority", model="permits.pml"),
    Run("set", "NO_COMPARISON CLIENTS=2 ENDINGS=0", "a look at the old token", model="permits.pml"),
    Run("slot-undo", "NO_UNDO CLIENTS=1", "the undo of a lost attempt", model="permits.pml"),
    Run(
        "slot-fence", "NO_CONFIRM CLIENTS=2 LATE=0", "the confirmation of a fence",
        model="permits.pml",
    ),
    Run(
        "limit", "NO_OWN_LIMIT CLIENTS=2 LIMIT=1 LIMIT_ONLY ENDINGS=0", "the client's own limit",
        model="permits.pml",
    ),
    Run(
        "open", "NO_MAJORITY CLIENTS=2 LIMIT=1 LATE=0", "a majority that refuses",
        model="permits.pml",
    ),
    Run("slot-ttl", "NO_TTL TICKS=1 CLIENTS=1", "the TTL", model="permits.pml"),
)  # fmt: skip
