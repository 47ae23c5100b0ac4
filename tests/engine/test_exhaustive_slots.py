"""Every trace of two or three clients that ask for two slots of a name, on three masters."""

from __future__ import annotations

import pytest

from redlock_django.engine.slot_choice import SlotChoice
from tests.engine import exhaustive_slots
from tests.engine.exhaustive_slots import Broken, Search
from tests.engine.lua_mutation import lua, script_mutated
from tests.engine.mutation import instead, mutated

STARTS = [
    (2, 2, 0), (2, 2, 1), (3, 1, 0),
    pytest.param(3, 1, 1, marks=pytest.mark.slow),
    pytest.param(3, 2, 0, marks=pytest.mark.nightly),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "rounds", "losses"), STARTS)
def test_every_trace(clients: int, rounds: int, losses: int) -> None:
    assert Search(clients=clients, rounds=rounds, losses=losses).run() > 500


def test_the_command_prints_how_many_states_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert exhaustive_slots.main(["--clients", "2"]) == 0
    assert "566 states in" in capsys.readouterr().out


def test_must_fail_a_slot_that_is_taken_from_its_holder() -> None:
    set_it = "not seen[2 + 2 * index] and not redis.call('SET', key, value, 'NX', 'PX', ttl)"
    overwrite = lua(
        "if lock ~= value then", "if not lock then",
        (set_it, "not redis.call('SET', key, value, 'PX', ttl)"),
    )  # fmt: skip
    with (
        script_mutated("acquire", overwrite),
        pytest.raises(Broken, match="two hold one slot"),
    ):
        Search(clients=2).run()


def test_must_fail_a_client_that_takes_a_slot_of_one_master_for_taken() -> None:
    with (
        mutated(SlotChoice.note, instead("tally.majority(...)", "not least"), "any"),
        pytest.raises(Broken, match="was free on a majority throughout"),
    ):
        Search(clients=3).run()
