"""Which deployment masters belong to, as their markers show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redlock_django.engine import membership
from redlock_django.engine.membership import NEW as NEW_MASTER
from redlock_django.engine.membership import RECENT, Membership
from redlock_django.engine.protocol.deployment import Deployment
from tests.engine.mutants import kills
from tests.engine.mutation import always, instead

ABC = Deployment(names=("a", "b", "c"))
ABD = Deployment(names=("a", "b", "d"))
OLD, NEW = ABC.fingerprint, ABD.fingerprint


def met(membership: Membership, now: float = 0.0, **masters: str) -> Membership:
    """Make the masters show these fingerprints, "" for none, at that time."""
    for name, fingerprint in masters.items():
        membership.saw(name, f"run of {name}", fingerprint, now, bound=True)
    return membership


@pytest.mark.parametrize(
    ("masters", "may"),
    [
        ({"a": OLD, "b": OLD}, True),
        ({"a": OLD}, False),
        ({"a": OLD, "b": ""}, True),
        ({"a": "", "b": ""}, True),
        ({"a": ""}, False),
        ({"a": OLD, "b": NEW}, False),
        ({"a": "", "b": NEW}, False),
    ],
)
def test_a_marker_is_written_only_if_no_other_deployment_can_have_a_quorum(
    masters: dict[str, str], may: bool
) -> None:
    membership = met(Membership(ABC), **{**masters, "c": ""})  # type: ignore[arg-type]
    assert membership.may_mark(0.0) is may


@kills("old evidence", Membership._recent, always("abs(...) <= RECENT"))
def test_a_quorum_that_was_seen_long_ago_is_no_evidence() -> None:
    membership = met(Membership(ABC), a=OLD, b=OLD, c="")
    assert not membership.may_mark(RECENT + 0.1)


@kills("a marker without evidence", Membership.may_mark,
       always("self._count(now) >= quorum(len(self._names))"))  # fmt: skip
def test_every_master_must_answer_before_the_first_marker_is_written() -> None:
    four = Deployment(names=("a", "b", "c", "d"))
    membership = met(Membership(four), c="", d="")
    assert not membership.may_mark(0.0)
    assert membership.why_unmarked(0.0).startswith(f"{NEW_MASTER} once a, b can be asked")
    met(membership, a=OLD, b="")
    assert not membership.may_mark(0.0)
    assert membership.conflict == "a"
    assert membership.why_unmarked(0.0).endswith("because a belongs to another deployment")
    met(membership, a="")
    assert membership.may_mark(0.0)
    assert membership.why_unmarked(0.0) == NEW_MASTER
    membership.trusted_from = 0.0  # so the deployment is in use
    assert membership.why_unmarked(0.0) == "new or emptied: has no marker yet"
    assert membership.why_unmarked(9.0).startswith("new or emptied: not counted before a, b, c, d")
    met(membership, now=9.0, b=four.fingerprint, c=four.fingerprint, d=four.fingerprint)
    assert membership.may_mark(9.0), "a quorum of the masters is enough"


@kills("a conflict is forgotten", Membership._is_foreign,
       instead("self._seen.get(name)", "self._seen.pop(name, None)"))  # fmt: skip
def test_a_master_of_another_deployment_is_a_conflict_until_it_shows_otherwise() -> None:
    membership = met(Membership(ABC), a=OLD, b=NEW, c=OLD)
    assert membership.conflict == "b"
    assert met(membership, now=100.0, a=OLD).conflict == "b"
    assert not met(membership, b="").conflict


@kills("other names without proof", Membership.saw, always("len(recent) == len(self._names)"))
def test_the_same_servers_under_other_names_are_the_same_deployment() -> None:
    membership = met(Membership(ABD), a=OLD, b=OLD)
    assert_unproven(membership)
    assert not met(membership, d=OLD).conflict
    assert met(membership, a=NEW, b=NEW).conflict == "a"
    assert membership.fingerprint == OLD
    assert membership.why_foreign(OLD).endswith("is asked again")
    why = membership.why_foreign(NEW)
    settings = "MASTERS, PROFILE, MAX_TTL, MAX_CLOCK_SKEW and RESTART_DELAY"
    for part in (NEW, OLD, settings, "redlock_init --reconfigure"):
        assert part in why
    assert not met(membership, d=NEW).conflict
    assert membership.fingerprint == NEW


def assert_unproven(membership: Membership) -> None:
    assert membership.fingerprint == NEW
    assert membership.conflict


@kills(
    "an old answer proves it", Membership.saw, instead("self._recent(...)", "self._seen.get(one)")
)
def test_a_master_that_answered_long_ago_proves_nothing() -> None:
    membership = met(Membership(ABD), now=-RECENT - 0.1, a=OLD)
    assert_unproven(met(membership, b=OLD, d=OLD))


@kills("two names of one server prove it", membership.same_servers,
       always("len(servers) == len(sights)"), "run of a", True)  # fmt: skip
@kills("a copied marker proves it", membership.same_servers, always("all(...)"), "run of d", False)
@pytest.mark.parametrize(("run", "bound"), [("run of a", True), ("run of d", False)])
def test_one_server_with_two_names_or_a_copied_marker_proves_nothing(run: str, bound: bool) -> None:
    membership = met(Membership(ABD), a=OLD, b=OLD)
    membership.saw("d", run, OLD, 0.0, bound=bound)
    assert_unproven(membership)


OTHER = replace(ABC, max_ttl=30).fingerprint


@kills("other numbers prove it", membership.same_servers,
       always("numbers_of(other) == numbers_of(fingerprint)"), OTHER)  # fmt: skip
@pytest.mark.parametrize("other", [OTHER, f"{OLD},closed"])
def test_other_numbers_or_markers_of_closed_masters_prove_nothing(other: str) -> None:
    assert_unproven(met(Membership(ABD), a=other, b=other, d=other))


def test_all_links_of_the_process_read_the_markers_again() -> None:
    class Links:
        asked = 0

        def look_again(self) -> None:
            self.asked += 1

    membership, links, others = Membership(ABC), Links(), Links()
    membership.readers.update((links, others))
    membership.look_again()
    assert (links.asked, others.asked) == (1, 1)
