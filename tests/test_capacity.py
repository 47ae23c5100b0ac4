"""The capacity page: its tables are the measured figures, and what follows from them."""

from __future__ import annotations

import re

import pytest

from benchmarks.studies.capacity import (
    LABELS,
    PLANNED,
    SIZES,
    Costs,
    costs,
    measured,
    rates,
)
from redlock_django.testing import LocalMaster
from tests.pages import ROOT

PAGE = (ROOT / "docs/explanation/capacity.md").read_text()


def figures() -> dict[int, Costs]:
    """Return the measured figures of the page, by the number of masters."""
    rows = [
        [float(cell.replace(",", "")) for cell in re.findall(r"[\d.,]+(?= \|)", line)]
        for label in LABELS
        for line in PAGE.splitlines()
        if line.startswith(f"| {label} |")
    ]
    return {
        size: Costs(*column) for size, column in zip(SIZES, zip(*rows, strict=True), strict=True)
    }


@pytest.mark.live
def test_the_measurement_runs(masters: list[LocalMaster]) -> None:
    found = costs(masters[:PLANNED], pairs=5, locks=50)
    assert found.pair > 0
    assert found.extension > 0
    assert found.held > 0


def test_the_page_has_the_measured_table() -> None:
    assert measured(figures()) in PAGE


def test_the_page_is_calculated_from_its_figures() -> None:
    assert rates(figures()[PLANNED]) in PAGE


def test_the_calculation_adds_up_the_costs() -> None:
    cost = Costs(
        pair=100,
        pair_master=50,
        extension=50,
        extension_master=25,
        held=1000,
        held_master=400,
        fence_master=100,
    )
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in rates(cost).splitlines()[2:]
    ]
    assert rows == [
        ["1,000", "1", "3", "1", "0.1 GB"],
        ["10,000", "1", "3", "2", "0.6 GB"],
        ["100,000", "10", "30", "20", "0.6 GB"],
    ]
