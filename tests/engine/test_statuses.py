"""The statuses: every script answers with a name of the table, and is sent with its number."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from redlock_django.engine.protocol.commands import INCLUDE, script
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.statuses import UNCOUNTED, Status

LUA = {
    path.name.removesuffix(".lua"): path.read_text(encoding="utf-8")
    for path in files("redlock_django.engine.protocol").joinpath("lua").iterdir()
}
INCLUDES = {part for text in LUA.values() for part in INCLUDE.findall(text)}
SCRIPTS = sorted(LUA.keys() - INCLUDES)
# A reply begins with the round, a status and a comma; a status may be in a variable first.
ROUND = r"struct.pack\('<[i8]+', (?:round|tonumber\(ARGV\[1\]\)), "
REPLIED = re.compile(rf"{ROUND}([^,]+),")
ASSIGNED = re.compile(r"\bstatus\b[\w, ]* = (\w+)")


DEPLOYMENT = Deployment(names=("a", "b", "c"))


def _whole(name: str) -> str:
    """Return the text of a file with what it includes."""
    return INCLUDE.sub(lambda line: _whole(line[1]), LUA[name])


def _code(lua: str) -> str:
    return re.sub(r"--.*", "", lua)


@pytest.mark.parametrize("name", sorted(LUA))
def test_a_script_answers_with_names_of_the_table(name: str) -> None:
    code = _code(LUA[name])
    replied = REPLIED.findall(code)
    assert replied or name in INCLUDES
    assert len(replied) == len(re.findall(ROUND, code))
    assert {*replied, *ASSIGNED.findall(code)} - {"status"} <= Status.__members__.keys()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_sent_with_numbers(name: str) -> None:
    text, _ = script(name, DEPLOYMENT)
    numbers = [
        str(Status.__members__.get(status, status))
        for status in REPLIED.findall(_code(_whole(name)))
    ]
    assert REPLIED.findall(_code(text)) == numbers
    assert not re.search(rf"\b({'|'.join(Status.__members__)})\b", text)


def test_a_script_has_the_numbers_of_its_deployment() -> None:
    other = Deployment(
        names=("a",), max_ttl=7, max_clock_skew=0.003, fence_ttl=77, prefix="redløck:17"
    )
    names = {name for name, _ in DEPLOYMENT.constants}
    for name in SCRIPTS:
        code = _code(_whole(name))
        used = {each for each in names if re.search(rf"\b{each}\b", code)}
        texts = [_code(script(name, one)[0]) for one in (DEPLOYMENT, other)]
        assert (texts[0] != texts[1]) is bool(used), name
        for each, number in other.constants:
            assert not re.search(rf"\b{each}\b", texts[1]), name
            assert each not in used or re.search(rf"\b{number}\b", texts[1]), name
    assert dict(other.constants) == {
        "SKEW": 3_000, "MAX_TTL": 7_000, "FENCE_TTL": 77_000, "NAME": 18,
    }  # fmt: skip


def test_every_status_is_one_that_a_script_answers() -> None:
    everything = _code("".join(LUA.values()))
    assert {
        name for name in Status.__members__ if re.search(rf"\b{name}\b", everything)
    } == Status.__members__.keys()


def test_each_status_has_a_number_of_its_own() -> None:
    assert len(Status.__members__) == len(Status)
    assert set(UNCOUNTED) < set(Status)
