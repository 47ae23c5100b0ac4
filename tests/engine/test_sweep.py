"""Many seeds: identical traces on every hash seed, and the command that replays a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine import sweep
from tests.engine.simulator import Simulation, replay
from tests.engine.world import Violation

ROOT = Path(__file__).resolve().parents[2]
PRINT_TRACES = (
    "from tests.engine.simulator import replay; print(*map(replay, range(4)), sep='', end='')"
)


@pytest.mark.slow
def test_seeds_produce_identical_traces_on_every_hash_seed() -> None:
    """In this process, whose hash seed is random, and in one with another hash seed."""
    other = "0" if os.environ.get("PYTHONHASHSEED") == "77" else "77"
    traces = subprocess.run(
        [sys.executable, "-c", PRINT_TRACES],
        env={**os.environ, "PYTHONHASHSEED": other},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert traces == "".join(map(replay, range(4)))


def test_a_failing_seed_is_printed_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: Simulation) -> None:
        raise Violation("two hold it")

    monkeypatch.setattr(Simulation, "run", fail)
    chunk = sweep.run(7, 1)
    assert chunk.failing == {"7": "Violation: two hold it"}
    monkeypatch.setattr(sweep, "sweep", lambda *_: iter([chunk]))
    assert sweep.main(["--first", "7", "--seeds", "1"]) == 1
    out = capsys.readouterr().out
    assert "seed 7: Violation: two hold it\n" in out
    assert "python -m tests.engine.simulator --seed 7" in out


@pytest.mark.slow
def test_a_sweep_with_permits_has_another_digest(capsys: pytest.CaptureFixture[str]) -> None:
    digests = set()
    for variant in ((), ("--permits",)):
        assert sweep.main(["--first", "3", "--seeds", "1", "--jobs", "1", *variant]) == 0
        digests.add(capsys.readouterr().out.splitlines()[-1])
    assert len(digests) == 2
