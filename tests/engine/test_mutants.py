"""Every rule of the design has a schedule that tells when the rule is not there."""

from __future__ import annotations

import pytest

from tests.engine.mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found_out(mutant: Mutant) -> None:
    mutant.told_by()  # without the mutant there is nothing to find out
    assert mutant.found_out(), f"{mutant.rule}: taken out, and its schedule does not tell"
    mutant.told_by()  # and the mutant is gone again


def test_a_mutant_that_changes_nothing_survives() -> None:
    """The harness tells a mutant that is found out from one that is not."""
    mutant = MUTANTS[0]
    stands, _ = mutant.bends[0]
    assert not mutant._replace(bends=((stands, stands),)).found_out()


def test_a_mutant_of_text_that_is_not_there_is_an_error() -> None:
    mutant = MUTANTS[0]
    with pytest.raises(LookupError, match="0 times"):
        mutant._replace(bends=(("no such text", ""),)).found_out()


def test_every_paragraph_of_the_design_that_has_rules_has_mutants() -> None:
    rules = [mutant.rule for mutant in MUTANTS]
    for paragraph in ("§5 ", "§6 ", "§7.3 ", "§7.4 ", "§7.5 ", "§7.6 ", "§7.7 "):
        assert any(rule.startswith(paragraph) for rule in rules), paragraph
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 100
