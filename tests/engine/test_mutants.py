"""Every rule of the algorithm has a schedule that fails when the rule is removed."""

from __future__ import annotations

from functools import cache

import pytest

from redlock_django.engine.protocol import commands
from tests.engine.lua_mutation import Lua
from tests.engine.mutants import MUTANTS, Mutant, Schedule
from tests.engine.mutation import never, plain_function

TOPICS = {
    "fast path", "quorum", "validity", "rounds", "master", "fence", "extension", "queue",
    "link", "trust", "clock step", "fork", "safe servers", "index", "minimum hold",
    "slots", "hand-on",
}  # fmt: skip


@cache
def _passes_without_a_mutant(schedule: Schedule) -> None:
    schedule()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_detected(mutant: Mutant) -> None:
    _passes_without_a_mutant(mutant.schedule)
    code = _code(mutant)
    assert mutant.failure(), f"{mutant.rule}: removed, and its schedule still passes"
    assert _code(mutant) is code  # the mutant is gone again


def _code(mutant: Mutant) -> object:
    if isinstance(mutant.mutation, Lua):
        return commands.script
    return plain_function(mutant.function).__code__


def test_a_mutant_that_changes_nothing_survives() -> None:
    assert not MUTANTS[0]._replace(mutation=lambda function: None).failure()


def test_a_mutant_of_code_that_is_not_there_is_an_error() -> None:
    with pytest.raises(LookupError, match="'masters > 5'"):
        MUTANTS[0]._replace(mutation=never("masters > 5")).failure()


def test_every_topic_of_the_algorithm_has_mutants() -> None:
    assert {mutant.rule.partition(": ")[0] for mutant in MUTANTS} == TOPICS
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 100
