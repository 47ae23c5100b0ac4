"""The searches: what must hold within which bounds, and the rules without which it does not."""

from __future__ import annotations

from tests.formal.spin import Run

HOLDS = (
    Run("two clients, no time passes", "TICKS=0", states=32_828, daily=True),
    Run("two clients, two ticks", "TICKS=2", states=12_424_441),
    Run("three clients, no time passes", "CLIENTS=3 TICKS=0", states=7_636_241),
    Run("a master restarts", "TICKS=1 RESTARTS=1", states=19_113_578),
    Run("a lease is extended or healed", "TICKS=1 TTL=3 EXTENSIONS=1", states=9_062_065),
    Run("a release overtakes its acquire", "TICKS=0 BREAKS=1", states=162_196),
    Run("a message is lost", "TICKS=0 LOSSES=1", states=121_919),
    Run(
        "three waiters, of which two may stop", "STOPS=2", states=2_212,
        model="queue.pml", daily=True, live=True,
    ),
    Run(
        "two slots, two clients", "CLIENTS=2 LATE=0", states=219_693,
        model="permits.pml", daily=True,
    ),
    Run(
        "two slots, two clients, one tick", "CLIENTS=2 TICKS=1", states=8_931_825,
        model="permits.pml",
    ),
    Run("two slots, three clients", "ENDINGS=1 LATE=0", states=1_851_351, model="permits.pml"),
    Run("two slots, three clients that stay", "ENDINGS=0", states=429_311, model="permits.pml"),
)  # fmt: skip

TWO_HOLDERS = "Two clients hold the lock."
LEFT = "All is done, and a lock is left."
FAILS = (
    Run("quorum", "NO_QUORUM TICKS=0 EXCLUSION_ONLY", "a majority", TWO_HOLDERS, daily=True),
    Run("drift", "NO_DRIFT TICKS=1 EXCLUSION_ONLY", "drift", TWO_HOLDERS),
    Run(
        "delay", "NO_RESTART_DELAY TICKS=0 RESTARTS=1 EXCLUSION_ONLY", "RESTART_DELAY", TWO_HOLDERS
    ),
    Run(
        "token", "NO_TOKEN TICKS=0 ATTEMPTS=2 EXCLUSION_ONLY", "the token at a release", TWO_HOLDERS
    ),
    Run(
        "confirm", "NO_CONFIRM TICKS=0 ATTEMPTS=2", "the confirmation of a fence",
        "The fence is not above 2.",
    ),
    Run("undo", "NO_UNDO TICKS=0 CLIENTS=1", "the undo of a lost attempt", LEFT),
    Run("tombstone", "NO_TOMBSTONE TICKS=0 CLIENTS=1 BREAKS=1", "tombstones", LEFT),
    Run("turn", "NO_TURN", "turns", "Waiter 3 has overtaken waiter 1.", model="queue.pml"),
    Run(
        "patience", "NO_PATIENCE", "an end of a turn", "No other waiter is ever served.",
        model="queue.pml", live=True,
    ),
    Run("ttl", "NO_TTL TICKS=2 CLIENTS=1", "the TTL", "Master 1 still has a lock after its TTL."),
    Run(
        "slots", "NO_SLOTS LIMIT_ONLY ENDINGS=0 LATE=0", "slots (clients are counted)",
        "The limit is 2, and 3 clients hold a slot.", model="permits.pml", daily=True,
    ),
    Run(
        "slot-quorum", "NO_QUORUM LIMIT_ONLY ENDINGS=0 LATE=0", "a majority",
        "The limit is 2, and 3 clients hold a slot.", model="permits.pml",
    ),
    Run(
        "set", "NO_COMPARISON CLIENTS=2 ENDINGS=0", "a look at the old token",
        "Two clients hold slot 0.", model="permits.pml",
    ),
    Run(
        "slot-undo", "NO_UNDO CLIENTS=1", "the undo of a lost attempt",
        "All is done, and a slot is left.", model="permits.pml",
    ),
    Run(
        "slot-fence", "NO_CONFIRM CLIENTS=2 LATE=0", "the confirmation of a fence",
        "The fence is not above 2.", model="permits.pml",
    ),
    Run(
        "limit", "NO_OWN_LIMIT CLIENTS=2 LIMIT=1 LIMIT_ONLY ENDINGS=0", "the client's own limit",
        "The limit is 1, and 2 clients hold a slot.", model="permits.pml",
    ),
    Run(
        "open", "NO_MAJORITY CLIENTS=2 LIMIT=1 LATE=0", "a majority that refuses",
        "Client 1 is refused, and slot 0 was free on a majority throughout.", model="permits.pml",
    ),
    Run(
        "slot-ttl", "NO_TTL TICKS=1 CLIENTS=1", "the TTL",
        "Master 1 still has slot 0 after its TTL.", model="permits.pml",
    ),
)  # fmt: skip
