"""Rules of commands, the deployment, and which masters belong to it."""

from __future__ import annotations

from redlock_django.engine import (
    membership,
)
from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol.commands import Heal, Release
from redlock_django.engine.protocol.deployment import Deployment
from tests.engine import (
    schedules,
    test_commands,
    test_membership,
    test_queue,
    test_rounds,
)
from tests.engine.mutants.mutant import Mutant
from tests.engine.mutation import (
    always,
    instead,
    never,
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "no tombstone", "master: a release may leave a tombstone", Release.arguments,
        never("self.bury"), test_rounds.test_a_release_can_bury_and_need_not_be_awaited,
    ),
    Mutant(
        "a heal counts at once", "extension: a healed master counts from the next one", Heal.vote,
        never("vote.ballot is Ballot.GRANTED"), schedules.a_healed_master_does_not_count_at_once,
    ),
    Mutant(
        "an undo calls", "queue: an undo before the next round calls nobody", Release.keys,
        always("self.calls"), test_queue.test_an_undo_on_the_way_to_the_next_round_calls_no_waiter,
    ),
    Mutant(
        "a fingerprint without the skew", "trust: the fingerprint has N, MAX_TTL and the skew",
        Deployment.fingerprint,
        instead("ms(self.max_clock_skew)", "0"),
        test_commands.test_a_fingerprint_differs_where_a_number_differs,
    ),
    Mutant(
        "a fingerprint without the masters", "trust: the fingerprint has the masters",
        Deployment.fingerprint,
        instead("members[:16]", "''"),
        test_commands.test_a_fingerprint_differs_where_a_number_differs,
    ),
    Mutant(
        "a marker without evidence", "trust: a fresh master is marked if no other can have it",
        Membership.may_mark,
        always("self._count(now) >= quorum(len(self._names))"),
        test_membership.test_every_master_must_answer_before_the_first_marker_is_written,
    ),
    Mutant(
        "old evidence", "trust: evidence for a marker is recent", Membership._recent,
        always("abs(...) <= RECENT"),
        test_membership.test_a_quorum_that_was_seen_long_ago_is_no_evidence,
    ),
    Mutant(
        "a conflict is forgotten", "trust: a conflict lasts until the master shows otherwise",
        Membership._is_foreign,
        instead("self._seen.get(name)", "self._seen.pop(name, None)"),
        test_membership.test_a_master_of_another_deployment_is_a_conflict_until_it_shows_otherwise,
    ),
    Mutant(
        "other names without proof", "trust: other names only with the proof of all servers",
        Membership.saw,
        always("len(recent) == len(self._names)"),
        test_membership.test_the_same_servers_under_other_names_are_the_same_deployment,
    ),
    Mutant(
        "two names of one server prove it", "trust: other names are those of different servers",
        membership.same_servers,
        always("len(servers) == len(sights)"),
        test_membership.test_one_server_with_two_names_proves_nothing,
    ),
    Mutant(
        "a copied marker proves it", "trust: other names need the marker of the server's run",
        membership.same_servers,
        always("all(...)"), test_membership.test_a_copied_marker_proves_nothing,
    ),
    Mutant(
        "other numbers prove it", "trust: other names with the same numbers only",
        membership.same_servers,
        always("numbers_of(other) == numbers_of(fingerprint)"),
        test_membership.test_other_numbers_prove_nothing,
    ),
)  # fmt: skip
