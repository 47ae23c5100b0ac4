"""Rules of replies and what they answer."""

from __future__ import annotations

from functools import partial

from redlock_django.wire.drivers.sockets import Sockets
from redlock_django.wire.links.master import Master
from redlock_django.wire.links.replies import Replies, _of_round
from tests.engine.mutants.mutant import Mutant
from tests.engine.mutation import (
    always,
    instead,
    never,
    without,
)
from tests.wire import (
    link_schedules,
    test_plain_rounds,
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a plain grant of any round", "fast path: every reply has its round's number",
        Replies._count_plain, never("number != oldest.number"),
        test_plain_rounds.test_a_grant_of_another_round_is_not_a_vote,
    ),
    Mutant(
        "a plain reply of any status", "fast path: a status that is no vote takes the long way",
        Replies._count_plain, never("status < 0"),
        link_schedules.a_master_that_is_not_ready_is_asked_why,
    ),
    Mutant(
        "a plain reply of any length", "fast path: a reply that is cut is counted with its rest",
        Replies._count_plain, never("len(data) < plain.size"),
        test_plain_rounds.test_a_grant_that_comes_in_two_parts_has_its_fence,
    ),
    Mutant(
        "0 is a time", "fast path: a release that did not read the clock shows no step",
        Replies._count_plain, always("time", nth=1),
        link_schedules.a_release_without_the_time_is_no_clock_step,
    ),
    Mutant(
        "a part of a reply is lost", "fast path: a reply that is cut is counted with its rest",
        Replies._parse, instead("return", "return link.received.clear()"),
        test_plain_rounds.test_a_refusal_that_comes_in_two_parts_counts,
    ),
    Mutant(
        "a part of a reply is read twice", "fast path: a reply that is cut is counted once",
        Replies._parse, without("del link.received[:]"),
        test_plain_rounds.test_a_refusal_that_is_parsed_in_two_parts_counts,
    ),
    Mutant(
        "a cut reply is parsed", "fast path: a reply that comes in two parts needs no vote",
        Replies._parse, never("is_cut(...)"),
        test_plain_rounds.test_a_refusal_that_comes_in_two_parts_counts,
    ),
    Mutant(
        "bytes inside a reply grant", "fast path: a reply that is parsed in part is no other",
        Replies._count_plain, always("not link.parsing"),
        test_plain_rounds.test_bytes_inside_a_refusal_do_not_grant,
    ),
    Mutant(
        "a stepped clock grants", "fast path: no vote from the step on", Replies._believes,
        always("self._steps.note(...)"),
        partial(test_plain_rounds.test_no_vote_counts_from_a_clock_step_on, b""),
    ),
    Mutant(
        "a step ends with its reply", "fast path: no vote that comes after a step",
        Replies._count_plain, never("not master.usable and ..."),
        partial(
            test_plain_rounds.test_no_reply_that_comes_with_or_after_a_clock_step_counts, False
        ),
    ),
    Mutant(
        "an old look at the clock", "fast path: clocks that drift are noted", Replies._believes,
        always("heard < until"),
        test_plain_rounds.test_bounds_of_clocks_are_not_old,
    ),
    Mutant(
        "our clock never goes back a little", "fast path: our clock that goes back is noted",
        Replies._believes, always("heard >= sent"),
        test_plain_rounds.test_our_clock_that_goes_back_a_little_within_a_round_is_noted,
    ),
    Mutant(
        "a reply of any round counts", "link: every reply has its round's number",
        _of_round, never("decoded.number != number"),
        link_schedules.a_reply_of_another_round_is_not_a_vote,
    ),
    Mutant(
        "an unexpected reply is ignored", "link: replies are counted", Replies._answer,
        instead("raise ProtocolDesync('a reply without a command')", "return"),
        link_schedules.an_unexpected_reply_drops_the_link,
    ),
    Mutant(
        "a failed release without a clock is a step", "link: 0 in a refusal is no time of a master",
        Replies._handle_vote,
        always("reply.time != 0"), link_schedules.a_release_without_the_time_is_no_clock_step,
    ),
    Mutant(
        "a late grant stays", "fast path: a grant after the refusal is released",
        Replies._count_plain, without("self._sender.undo_late(...)"),
        link_schedules.a_grant_after_the_refusal_is_released,
    ),
    Mutant(
        "a grant of a doubtful master stays", "link: a grant after the refusal is released",
        Replies._handle_vote, without("self._sender.undo_late(...)"),
        link_schedules.a_grant_of_a_late_or_doubtful_master_is_released,
    ),
    Mutant(
        "late replies are read at once", "link: replies that come too late are read in parts",
        Sockets.read, never("link.expired"),
        link_schedules.replies_that_come_too_late_are_read_in_parts,
    ),
    Mutant(
        "a refused release is forgotten", "link: a release that a master refused is repeated",
        Replies._handle_error,
        without(Master.refuse_release),
        link_schedules.a_release_that_a_master_refused_is_sent_again,
    ),
    Mutant(
        "a repeated release never ends", "link: an answered release is not repeated",
        Replies._handle_vote,
        without("master.refused_releases.pop(...)"),
        link_schedules.a_release_that_a_master_refused_is_sent_again,
    ),
    Mutant(
        "a decided round is sent again", "link: a decided round is not sent by EVAL",
        Replies._retry,
        always("owed.undecided is not None"),
        link_schedules.a_decided_round_is_not_sent_again,
    ),
    Mutant(
        "an undo by EVAL", "link: a master that lacks acquire learns release with it",
        Replies._retry, never("isinstance(command, Acquire)"),
        link_schedules.an_undo_is_known_to_a_master_that_learns_to_acquire,
    ),
    Mutant(
        "NOSCRIPT is a failure", "link: NOSCRIPT is answered by EVAL", Replies._handle_error,
        never("code == 'NOSCRIPT'"), link_schedules.a_script_that_was_flushed_is_sent_at_once,
    ),
    Mutant(
        "late grants take the long way", "fast path: late grants of decided rounds are removed",
        Replies._count_plain, never("exchange.decided and ..."),
        link_schedules.late_grants_of_decided_rounds_are_only_removed,
    ),
    Mutant(
        "removed replies are not counted off", "fast path: late grants are counted off",
        Replies._count_plain, without("link.expired -= 1"),
        link_schedules.late_grants_of_decided_rounds_are_only_removed,
    ),
    Mutant(
        "any late grant counts", "fast path: a late grant of an open round takes the long way",
        Replies._count_plain, always("exchange.decided", nth=1),
        link_schedules.a_late_grant_of_a_doubtful_master_has_no_vote,
    ),
    Mutant(
        "expired replies are not counted off", "link: each reply has its own age",
        Replies._pop_owed,
        never("link.expired"),
        link_schedules.an_expired_reply_that_has_come_is_not_counted_for_the_next,
    ),
    Mutant(
        "late for ever", "link: counted again once it has answered", Replies.feed,
        never("master.late and ..."), link_schedules.a_late_master_that_has_answered_votes_again,
    ),
    Mutant(
        "in time after one answer", "link: counted again once it has answered all", Replies.feed,
        always("not link.owed"), link_schedules.a_late_master_must_answer_all_that_it_owes,
    ),
    Mutant(
        "plain grants take no time", "fast path: it notes how long replies take",
        Replies._count_plain,
        instead(
            "link.ran, link.heard, link.took = ran, heard, heard - oldest.sent",
            "link.ran, link.heard = ran, heard",
        ),
        link_schedules.no_vote_is_lost_where_all_replies_take_long,
    ),
    Mutant(
        "NOT_READY is ignored", "trust: FLUSHALL is noticed", Replies._handle_vote,
        never("reply.status == Status.NOT_READY"),
        link_schedules.a_master_that_is_not_ready_is_asked_why,
    ),
    Mutant(
        "a stepped master still votes", "clock step: the vote is not counted", Replies._handle_vote,
        instead("master.doubt(read) if command.trusted else ''", "''"),
        link_schedules.a_clock_that_steps_is_marked_on_its_master,
    ),
    Mutant(
        "votes after a step count", "clock step: no vote from the step on", Replies._handle_vote,
        never("command.trusted"),
        link_schedules.a_command_sent_before_a_step_was_noticed_has_no_vote,
    ),
    Mutant(
        "a release after a step is unknown", "clock step: a release is counted",
        Replies._handle_vote,
        always("command.trusted"),
        link_schedules.a_release_is_counted_although_its_reply_shows_a_step,
    ),
    Mutant(
        "any answer settles a mark", "clock step: an answer settles only what it answers",
        Replies._handle_check,
        always("owed.mode == master.check_mode"),
        link_schedules.an_answer_to_an_older_check_does_not_settle_the_mark,
    ),
    Mutant(
        "a mark is sent again as a check", "clock step: a check keeps its mode",
        Replies._retry,
        instead("owed.mode", "'join'", nth=1),
        link_schedules.a_mark_whose_script_was_flushed_is_sent_again_as_a_mark,
    ),
    Mutant(
        "a clock that goes back between two replies is not noticed",
        "clock step: our own, while replies are read",
        Replies.feed, never("heard > self._steps.latest"),
        link_schedules.a_clock_that_goes_back_between_replies_voids_the_leases_before,
    ),
    Mutant(
        "a check that failed is not made again", "clock step: a failed mark is made again",
        Replies._handle_error,
        never("command is None"),
        link_schedules.a_step_is_marked_although_the_master_refuses_the_mark_at_first,
    ),
)  # fmt: skip
