"""Rules of the links of a process, from the locks that use them."""

from __future__ import annotations

from redlock_django.backends.redis import RedisBackend
from redlock_django.locking.lease import HeldLease
from redlock_django.wire.drivers.loop import LoopDriver
from redlock_django.wire.drivers.sockets import Sockets
from redlock_django.wire.links.links import Links
from tests.engine import (
    schedules,
)
from tests.engine.mutants.mutant import Mutant
from tests.engine.mutation import (
    instead,
    never,
    without,
)
from tests.wire import (
    link_schedules,
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "closed links leave a grant", "link: what may be granted is released before the end",
        Links.finish, without("self.sender.undo_late(...)"),
        link_schedules.links_that_close_after_the_refusal_send_the_release,
    ),
    Mutant(
        "a cancelled round of a loop is sent again", "link: a cancelled round is abandoned",
        LoopDriver._take,
        without("exchange.abandon()"),
        link_schedules.a_round_that_was_cancelled_in_a_loop_is_not_sent_again,
    ),
    Mutant(
        "a release over other links does not bury", "link: a release over other links buries",
        RedisBackend.post_release,
        instead("protocol if driver is lease.home else bury", "protocol"),
        link_schedules.a_release_over_other_links_buries,
    ),
    Mutant(
        "a child sends for its parent", "fork: no byte on inherited sockets", Sockets.abandon,
        instead("self.closed.set()", "self.flush()"),
        link_schedules.a_child_sends_nothing_that_its_parent_had_queued,
    ),
    Mutant(
        "a child holds its parent's lock", "fork: the child does not hold inherited locks",
        HeldLease.inherited,
        never("self.forks != locks.forks"), schedules.a_child_does_not_hold_what_its_parent_holds,
    ),
)  # fmt: skip
