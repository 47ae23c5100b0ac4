"""Mutations find the code they name however it is laid out, and show what is there if not."""

from __future__ import annotations

import pytest

from tests.engine.mutation import (
    Mutation,
    always,
    argument,
    at_start,
    instead,
    mutated,
    mutated_source,
    never,
    returns,
    together,
    without,
)


def limit(value: int, most: int) -> int:
    return min(value, most)


def cleanup() -> None:
    """Do nothing."""


def total(prices: list[int], most: int) -> int:
    """Add prices up, each at most `most`."""
    result = 0
    for price in prices:
        if (
            price < 0  # a refund
            or price == 13
        ):
            continue
        result += limit(
            price,
            most,
        )
    cleanup()
    return result


def _body(mutation: Mutation) -> list[str]:
    return [line.strip() for line in mutated_source(total, mutation).splitlines()[1:]]


@pytest.mark.parametrize(
    ("mutation", "line"),
    [
        (never("price < 0"), "if False or price == 13:"),
        (always("price<0 or price==13"), "if True:"),
        (never("price < 0 or ..."), "if False:"),
        (instead("... == 13", "price == 12"), "if price < 0 or price == 12:"),
        (instead("continue", "result += 1; break"), "break"),
        (returns("most"), "return most"),
        (argument(limit, value="-price"), "result += limit(-price, most)"),
        (instead(limit, "1"), "result += 1"),
        (at_start("most = 0"), "most = 0"),
        (together(never("price < 0"), never("price == 13")), "if False or False:"),
    ],
)
def test_a_mutation_changes_one_piece_of_code(mutation: Mutation, line: str) -> None:
    assert _body(mutation).count(line) == 1


def test_a_statement_that_calls_a_function_is_removed_by_the_functions_name() -> None:
    assert "cleanup()" in _body(without("result = 0"))
    assert "cleanup()" not in _body(without(cleanup))


def test_a_renamed_variable_is_still_found() -> None:
    assert "if False or price == 13:" in _body(never("amount < 0"))
    assert "result += limit(price - 1, most)" in _body(
        instead("cap(cost, most)", "cap(cost - 1, most)")
    )


def test_a_name_that_is_in_the_function_matches_itself_alone() -> None:
    with pytest.raises(LookupError):
        _body(never("result < 0"))


def test_a_target_that_is_not_there_is_an_error_that_shows_the_closest_code() -> None:
    with pytest.raises(LookupError, match=r"total has no 'price < 1'.*\n    price < 0\n"):
        _body(never("price < 1"))
    with pytest.raises(LookupError, match=r"no 'cleanup\(price\)'.*\n    cleanup\(\)\n"):
        _body(without("cleanup(price)"))
    with pytest.raises(LookupError, match="limit has no 'step', but"):
        _body(argument(limit, step="1"))


def test_a_target_that_is_there_twice_must_be_chosen() -> None:
    with pytest.raises(LookupError, match="total has 3 times 'price': choose one by nth"):
        _body(instead("price", "0"))
    assert "if price < 0 or 0 == 13:" in _body(instead("price", "0", nth=2))


def test_a_mutated_function_is_itself_again_afterwards() -> None:
    with mutated(limit, returns("value + most"), "sum"):
        assert limit(2, 3) == 5
    assert limit(2, 3) == 2
