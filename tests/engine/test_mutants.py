"""Every rule of the algorithm has a test that fails when the rule is removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from redlock_django.engine.protocol import commands
from tests.engine.lua_mutation import Lua
from tests.engine.mutants import Mutant, all_mutants
from tests.engine.mutation import never, plain_function

MUTANTS = all_mutants()
PACKAGE = Path(__file__).parents[2] / "redlock_django"


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_detected(name: str) -> None:
    """That its test passes without it is what pytest shows."""
    mutant = MUTANTS[name]
    code = _code(mutant)
    assert mutant.failure(), f"{name}: {mutant.test.__name__} still passes"
    assert _code(mutant) is code  # the mutant is gone again


def _code(mutant: Mutant) -> object:
    if isinstance(mutant.mutation, Lua):
        return commands.script
    return plain_function(mutant.function).__code__


def test_a_mutant_that_changes_nothing_survives() -> None:
    mutant = MUTANTS["quorum of half"]
    assert not mutant._replace(mutation=lambda function: None).failure()


def test_a_mutant_of_code_that_is_not_there_is_an_error() -> None:
    with pytest.raises(LookupError, match="'masters > 5'"):
        MUTANTS["quorum of half"]._replace(mutation=never("masters > 5")).failure()


# These hold no rule: errors, the trampoline, a reply and its bytes, which seeds and vectors test.
WITHOUT_RULES = {"__init__", "errors", "run_protocol", "link", "resp"}


def test_every_file_of_rules_has_a_mutant() -> None:
    functions = [one.function for one in MUTANTS.values() if not isinstance(one.mutation, Lua)]
    known = {plain_function(function).__module__ for function in functions}
    files = [*PACKAGE.glob("engine/*.py"), *PACKAGE.glob("wire/links/*.py")]
    names = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in files}
    without = {name for name in names - known if name.rpartition(".")[2] not in WITHOUT_RULES}
    assert without == set()
    assert len(MUTANTS) > 300
