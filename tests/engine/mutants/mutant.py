"""A mutant, and how it is detected."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pytest

from redlock_django.engine.errors import RedlockError
from tests.engine.lua_mutation import Lua
from tests.engine.mutation import Mutation, mutated

Schedule = Callable[[], object]

# What a schedule raises when it fails; anything else means that the mutant itself is broken.
FAILURES = (AssertionError, pytest.fail.Exception, RedlockError, StopIteration, RuntimeError)


class Mutant(NamedTuple):
    """A rule, after its topic, that `mutation` removes from `function`, and its schedule.

    A rule of a Lua script has the name of its file instead of a function.
    """

    name: str
    rule: str
    function: Any
    mutation: Mutation | Lua
    schedule: Schedule

    def active(self) -> AbstractContextManager[None]:
        """Return a context manager in which the mutant replaces the function."""
        return mutated(self.function, self.mutation, self.name)

    def failure(self) -> str:
        """Return how the schedule fails on the mutant; "" if the mutant survives."""
        with self.active():
            try:
                self.schedule()
            except FAILURES as failure:
                return str(failure).strip().partition("\n")[0] or type(failure).__name__
        return ""
