"""Mutants: the code of a rule removed or changed, and the test that fails then.

A mutant is a mark on its test. How it names what it changes is in `tests/engine/mutation.py`; code
that only moves, or whose names change, leaves it valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from redlock_django.engine.errors import RedlockError
from tests.engine.lua_mutation import Lua
from tests.engine.mutation import Mutation, mutated

Test = TypeVar("Test", bound=Callable[..., object])

# What a test raises when it fails; anything else means that the mutant itself is broken.
FAILURES = (AssertionError, pytest.fail.Exception, RedlockError, StopIteration, RuntimeError)
TESTS = Path(__file__).parents[1]


class Mutant(NamedTuple):
    """A rule that `mutation` removes from `function`, and the test that fails without it.

    A rule of a Lua script has the name of its file instead of a function. The test is called with
    `arguments`, and with the fixtures that it asks for, which are made by `fixture`.
    """

    name: str
    function: Any
    mutation: Mutation | Lua
    test: Callable[..., object]
    arguments: tuple[Any, ...] = ()

    def active(self) -> AbstractContextManager[None]:
        """Return a context manager in which the mutant replaces the function."""
        return mutated(self.function, self.mutation, self.name)

    def failure(self) -> str:
        """Return how the test fails on the mutant; "" if the mutant survives."""
        needed = [*signature(self.test).parameters][len(self.arguments) :]
        with self.active():
            try:
                with ExitStack() as stack:
                    fixtures = {name: stack.enter_context(_fixtures[name]()) for name in needed}
                    self.test(*self.arguments, **fixtures)
            except FAILURES as failure:
                return str(failure).strip().partition("\n")[0] or type(failure).__name__
        return ""


_marked: list[Mutant] = []
_fixtures: dict[str, Callable[[], AbstractContextManager[Any]]] = {}


def fixture(function: Callable[[], Iterator[Any]]) -> Any:
    """Make a generator function a fixture that mutants open for their tests as well."""
    _fixtures[function.__name__] = contextmanager(function)
    return pytest.fixture(function)


def kills(
    name: str, function: Any, mutation: Mutation | Lua, *arguments: Any
) -> Callable[[Test], Test]:
    """Mark a test that fails on a mutant, if it is called with these arguments."""

    def mark(test: Test) -> Test:
        # A test file is imported by its name in the package, and once more by pytest.
        if test.__module__.startswith("tests."):
            _marked.append(Mutant(name, function, mutation, test, arguments))
        return test

    return mark


@cache
def all_mutants() -> dict[str, Mutant]:
    """Return the mutants of all tests, by name."""
    for folder in ("engine", "wire"):
        import_module(f"tests.{folder}.conftest")
        for file in sorted((TESTS / folder).glob("test_*.py")):
            if "\n@kills(" in file.read_text():
                import_module(f"tests.{folder}.{file.stem}")
    mutants = {mutant.name: mutant for mutant in _marked}
    assert len(mutants) == len(_marked), "two mutants have one name"
    return mutants
