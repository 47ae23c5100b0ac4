"""What most tests of rounds begin with: masters that a test drives step by step."""

from __future__ import annotations

import pytest

from tests.engine.masters import Masters


@pytest.fixture
def masters() -> Masters:
    """Return three masters."""
    return Masters(3)


@pytest.fixture
def master() -> Masters:
    """Return a deployment of one master."""
    return Masters(1)
