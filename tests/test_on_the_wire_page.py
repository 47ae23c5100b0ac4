"""docs/contributing/on-the-wire.md names every status, script and key as the code has them."""

from __future__ import annotations

import re
from pathlib import Path

from redlock_django.engine.protocol import commands
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.statuses import Status

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/contributing/on-the-wire.md").read_text()
LUA = ROOT / "redlock_django/engine/protocol/lua"


def test_every_status_has_its_number() -> None:
    rows = re.findall(r"^\| (−?\d) \| `(\w+)` \|", PAGE, re.MULTILINE)
    said = {name: int(number.replace("−", "-")) for number, name in rows}
    said |= {name: int(number) for number, name in re.findall(r"(\d) \(`(\w+)`", PAGE)}
    assert said == Status.__members__


def test_every_script_is_described_and_no_other() -> None:
    files = {path.stem: path.read_text() for path in LUA.glob("*.lua")}
    included = {part for text in files.values() for part in commands.INCLUDE.findall(text)}
    scripts = files.keys() - included - {"join", "failover"}
    tables = PAGE[PAGE.index("## Commands on locks") : PAGE.index("## Statuses")]
    tables += PAGE[PAGE.index("## Inspection") :]
    assert scripts == set(re.findall(r"^\| `(\w+)` \|", tables, re.MULTILINE))
    assert "`join`" in PAGE
    assert "`failover.lua`" in PAGE


def test_the_first_lines_of_each_script_list_its_keys_its_arguments_and_its_reply() -> None:
    names = [command.name for command in commands.COMMANDS]
    for name in [*names, "join", "held", "look", "health"]:
        comment = re.match(r"(?:--.*\n)+", (LUA / f"{name}.lua").read_text())
        assert comment
        for part in ("-- KEYS: ", "-- ARGV: round", "-- -> "):
            assert part in comment[0], (name, part)


def test_every_key_is_described() -> None:
    deployment = Deployment(names=("a",), prefix="P")
    names = {
        deployment.lock("R"), deployment.fence("R"), deployment.queue("R"), deployment.held,
        deployment.marker, deployment.tomb("TOKEN"), deployment.wake("PROCESS"),
    }  # fmt: skip
    assert names == set(re.findall(r"^\| `(P:[\w:]+)` \|", PAGE, re.MULTILINE))
