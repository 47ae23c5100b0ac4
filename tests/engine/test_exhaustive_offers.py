"""Every trace of a release and of the waiters that it may grant the lock, on three masters."""

from __future__ import annotations

import pytest

from tests.engine import exhaustive_offers
from tests.engine.exhaustive import Broken
from tests.engine.exhaustive_offers import Search
from tests.engine.mutation import instead, mutated

STARTS = [
    ((1,), 0), ((2,), 0), ((1,), 1),
    pytest.param((1, 1), 0, marks=pytest.mark.nightly),
]  # fmt: skip


@pytest.mark.parametrize(("attempts", "losses"), STARTS)
def test_every_trace(attempts: tuple[int, ...], losses: int) -> None:
    assert Search(*attempts, losses=losses).run() > 1_000


def test_the_command_prints_how_many_states_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert exhaustive_offers.main(["--attempts", "1"]) == 0
    assert "1,551 states in" in capsys.readouterr().out


@pytest.mark.slow
def test_must_fail_a_minority_of_grants() -> None:
    minority = instead(
        "2 * sum(seat.granted for seat in seats) > len(seats)",
        "any(seat.granted for seat in seats)",
    )
    with (
        mutated(Search._judged_state, minority, "minority"),
        pytest.raises(Broken, match="two hold it"),
    ):
        Search(1, 1, waiters=1).run()
