"""Rules of what a release grants to the next waiter, and of which grants the waiter counts."""

from __future__ import annotations

from functools import partial

from redlock_django.backends.memory import scripts
from redlock_django.backends.memory.queue import Queues
from redlock_django.engine.attempt import Attempt
from redlock_django.engine.steps import Offer
from redlock_django.engine.wait import Wait
from redlock_django.wire.links.waiter import Waiter
from redlock_django.wire.links.waiters import Waiters
from tests.engine import test_offers
from tests.engine.mutants.mutant import Mutant
from tests.engine.mutation import always, instead, never, returns, without

NOT_GRANTED = test_offers.test_an_offer_is_not_granted

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "an old offer is granted", "offer: granted only while it is fresh", Queues._grant,
        never("not 0 <= now - offer.at <= min(...)"), partial(NOT_GRANTED, test_offers.too_old),
    ),
    Mutant(
        "an offer lasts as long for a short TTL", "offer: fresh for a part of its TTL",
        Queues._grant, instead("offer.ttl * 1000 * FRESH", "FRESHEST"),
        partial(NOT_GRANTED, test_offers.too_old_for_its_ttl),
    ),
    Mutant(
        "an offer of the future is granted", "offer: void once the master's clock went back",
        Queues._grant, instead("0 <= now - offer.at <= min(...)", "now - offer.at <= FRESHEST"),
        partial(NOT_GRANTED, test_offers.of_a_clock_that_went_back),
    ),
    Mutant(
        "an offer outlives the trust in its master", "offer: void under another marker",
        Queues._grant, never("keyspace.get(offer.marker) != offer.trusted"),
        partial(NOT_GRANTED, test_offers.of_another_marker),
    ),
    Mutant(
        "a buried offer is granted", "offer: void once its token has a tombstone", Queues._grant,
        never("keyspace.get(offer.tomb) is not None"), partial(NOT_GRANTED, test_offers.buried),
    ),
    Mutant(
        "a release sets again what it releases", "offer: not granted by its own release",
        Queues._grant, never("offer.value == freed.value"),
        test_offers.test_a_release_never_sets_again_what_it_releases,
    ),
    Mutant(
        "a grant keeps the fence", "offer: a grant raises the fence", Queues._grant,
        instead("max(int(stored) + 1, offer.proposal)", "int(stored)"),
        test_offers.test_a_release_grants_the_lock_to_the_first_waiter_on_every_master,
    ),
    Mutant(
        "the clock alone raises a fence", "offer: the fence is higher than the stored one",
        Queues._grant,
        instead("max(int(stored) + 1, offer.proposal)", "max(int(stored), offer.proposal)"),
        test_offers.test_the_fence_of_a_grant_grows_whatever_the_waiters_clock_says,
    ),
    Mutant(
        "a fence far ahead is granted", "offer: no fence above TIME + 2 skew is stored",
        Queues._grant, never("raised > now + 2 * offer.skew"),
        partial(NOT_GRANTED, test_offers.beside_a_fence_far_ahead),
    ),
    Mutant(
        "a waiter that does not hear is granted the lock", "offer: a grant is heard, or undone",
        Queues._grant,
        instead("keyspace.publish(...)", "(1, keyspace.publish(channel.decode(), b''))"),
        test_offers.test_a_waiter_whose_process_is_gone_is_granted_nothing,
    ),
    Mutant(
        "a late waiter is granted the lock", "offer: a late waiter is called first",
        Queues.call_first, always("score < LATE"),
        test_offers.test_a_late_waiter_is_called_and_not_granted_the_lock,
    ),
    Mutant(
        "a waiter that was granted the lock stays queued", "offer: a grant removes its waiter",
        Queues.call_first, without("self._keyspace.remove(key, name)"),
        test_offers.test_a_release_grants_the_lock_to_the_first_waiter_on_every_master,
    ),
    Mutant(
        "a grant blocks its own waiter", "offer: the next attempt replaces an earlier grant",
        scripts.acquire,
        instead("offer is not None and held != value and held == offer.value", "False"),
        test_offers.test_the_next_attempt_replaces_what_a_release_has_set_for_the_one_before,
    ),
    Mutant(
        "a waiter replaces the locks of others", "offer: only its own lock is replaced",
        scripts.acquire, always("held == offer.value"),
        test_offers.test_the_next_attempt_replaces_what_a_release_has_set_for_the_one_before,
    ),
    Mutant(
        "a leave leaves the grant", "offer: a waiter that leaves releases an earlier grant",
        scripts.release, never("lock not in (None, value) and ..."),
        partial(
            test_offers.test_a_waiter_that_leaves_releases_what_was_granted_to_an_earlier_attempt,
            interrupted=False,
        ),
    ),
    Mutant(
        "a leave leaves the offer", "offer: a waiter that leaves removes its offer", Queues.leave,
        without("self._keyspace.remove(self._offers, name)"),
        test_offers.test_a_release_also_releases_what_was_granted_to_an_earlier_attempt,
    ),
    Mutant(
        "valid from the message", "offer: valid from the start of its attempt", Wait.next_attempt,
        instead(
            "attempt, self.began = self.offered, now",
            "attempt, self.began = self.offered, now; attempt.started = now",
        ),
        test_offers.test_a_lock_that_was_granted_is_valid_from_the_start_of_its_attempt,
    ),
    Mutant(
        "granted although undone", "offer: void once anything of its attempt was undone",
        Attempt.offered, never("self.undone"),
        test_offers.test_an_attempt_from_which_something_was_undone_is_not_open,
    ),
    Mutant(
        "a waiter in few queues waits for grants", "offer: open only if a majority has queued it",
        Attempt.offered, never("not self.queued"),
        test_offers.test_an_attempt_that_no_majority_has_queued_is_not_open,
    ),
    Mutant(
        "any master counts", "offer: only a master counts that is known to have queued the waiter",
        Offer.is_from, instead("vote is not None and vote.ahead >= 0", "True"),
        test_offers.test_a_master_counts_whose_refusal_comes_late,
    ),
    Mutant(
        "a master counts whose reply was lost", "offer: a failed vote is not a refusal",
        Offer.is_from, instead("vote is not None and vote.ahead >= 0", "vote is not None"),
        test_offers.test_a_master_does_not_count_whose_reply_was_lost,
    ),
    Mutant(
        "a message of another master counts", "offer: a grant proves which master it is of",
        Offer.is_from, instead("marker", "b'trusted'"),
        test_offers.test_a_master_counts_whose_refusal_comes_late,
    ),
    Mutant(
        "a message of an earlier token counts", "offer: a grant is of the token that is open",
        Offer.is_from, returns("is_queued"),
        test_offers.test_a_message_of_another_token_is_a_call,
    ),
    Mutant(
        "a master counts that may not vote", "offer: grants are believed as votes are",
        Waiters.call, always("believes(...)"),
        test_offers.test_a_grant_of_a_master_that_may_not_vote_is_a_call,
    ),
    Mutant(
        "a late grant of a held lock is undone", "offer: what is held is not released",
        Wait.next_attempt, without("self.attempt.tally.verdict = WON"),
        test_offers.test_what_a_master_grants_to_a_held_attempt_is_not_released,
    ),
    Mutant(
        "a minority ends the pause", "offer: granted by a majority", Waiter.grant,
        always("granted.decided"),
        test_offers.test_a_minority_that_has_granted_the_lock_is_not_enough,
    ),
    Mutant(
        "a minority has granted the lock", "offer: held once a majority has granted it",
        Wait.is_granted, returns("self.offered is not None"),
        test_offers.test_the_next_attempt_replaces_what_a_release_has_set_for_the_one_before,
    ),
    Mutant(
        "a waiter rests on a minority", "offer: a waiter that few have granted the lock asks soon",
        Waiter.grant, without("self.hurry(PARTIAL)"),
        test_offers.test_a_minority_that_has_granted_the_lock_is_not_enough,
    ),
)  # fmt: skip
