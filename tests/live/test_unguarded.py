"""Each rule that a test of a fault is marked with exists, and can be removed."""

from __future__ import annotations

from tests.live import removed_rules
from tests.live.unguarded import marked


def test_every_rule_can_be_removed() -> None:
    """The code that a rule is made of is found; otherwise an error names the code."""
    for name in removed_rules.RULES:
        with removed_rules.without_rule(name):
            pass


def test_every_rule_that_a_test_is_marked_with_exists() -> None:
    assert set() < marked().keys() <= removed_rules.RULES.keys()
