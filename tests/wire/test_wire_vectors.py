"""The code and a real server agree with the bytes in docs/reference/wire-vectors.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from redlock_django.engine.protocol.commands import COMMANDS
from redlock_django.testing.masters import local_masters
from tests.wire_vectors import FILE, Case, Server, cases, parse, read, sent

VECTORS: dict[str, dict[str, Any]] = {
    vector["name"]: vector for vector in json.loads(FILE.read_text())["vectors"]
}
CASES = [pytest.param(case, id=case.name) for case in cases()]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with local_masters(1) as (master,):
        server = Server(master)
        yield server
        server.socket.close()


def test_every_command_has_vectors() -> None:
    assert {vector["script"] for vector in VECTORS.values()} == {
        *(command.name for command in COMMANDS),
        "join",
    }
    assert [case.name for case in cases()] == list(VECTORS)


@pytest.mark.parametrize("case", CASES)
def test_the_code_sends_and_reads_the_bytes_of_the_file(case: Case) -> None:
    vector = VECTORS[case.name]
    keys, argv = sent(case)
    assert keys == vector["keys"]
    assert [one.hex() for one in argv] == vector["argv"]
    assert read(case, parse(bytes.fromhex(vector["reply"]))) == vector["reads"]


@pytest.mark.parametrize("case", CASES)
def test_a_server_replies_as_the_file_says(case: Case, server: Server) -> None:
    vector = VECTORS[case.name]
    reply, expected = server.run(case), bytes.fromhex(vector["reply"])
    real, listed = parse(reply), parse(expected)
    assert len(real) == len(listed)
    groups = range(0, len(real), 8)
    differ = [at // 8 for at in groups if real[at : at + 8] != listed[at : at + 8]]
    assert [index for index in differ if index not in vector["varies"]] == []
