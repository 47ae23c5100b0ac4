"""Fixtures of most tests of rounds: masters that a test drives step by step."""

from __future__ import annotations

from collections.abc import Iterator

from tests.engine.masters import Masters
from tests.engine.mutants import fixture


@fixture
def masters() -> Iterator[Masters]:
    """Provide three masters."""
    yield Masters(3)


@fixture
def master() -> Iterator[Masters]:
    """Provide a deployment of one master."""
    yield Masters(1)
