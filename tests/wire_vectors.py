"""Write docs/reference/wire-vectors.json: what is sent to a master and what it replies, in bytes.

    uv run python -m tests.wire_vectors > docs/reference/wire-vectors.json

Each vector has the keys that the server has before (`before`: commands in words), the script with
KEYS and ARGV as they are sent, and the reply as it is read, in hexadecimal digits. `varies` are the
positions in the reply, in groups of eight bytes counted from 0, which depend on the clock.
`reads` is what this package makes of the reply.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hiredis

from redlock_django.engine.protocol.commands import (
    Acquire,
    Command,
    Confirm,
    Extend,
    Heal,
    Release,
    Restore,
    Take,
    decode,
    script,
)
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.slots import slot_resource
from redlock_django.engine.protocol.trust_marker import Join
from redlock_django.testing.masters import LocalMaster, local_masters

FILE = Path(__file__).resolve().parents[1] / "docs/reference/wire-vectors.json"
D = Deployment(names=("a", "b", "c"), max_ttl=60, max_clock_skew=0.5, fence_ttl=600)
ROUND = 7
MARKER = "0" * 40 + " 1 n=3"
OURS = "a" * 32 + ' {"host":"web-1","pid":1}'
THEIRS = "b" * 32 + ' {"host":"web-2","pid":2}'
COMMON: dict[str, Any] = {"deployment": D, "resources": ("order:1",), "value": OURS}
LOCK, FENCE, QUEUE = D.lock("order:1"), D.fence("order:1"), D.queue("order:1")
SET_LOCK = ("SET", LOCK, OURS, "PX", "50000")
SET_THEIRS = ("SET", LOCK, THEIRS, "PX", "50000")
WAITER = f"{D.wake('0123456789abcdef')} 1"
TRUST = ("SET", D.marker, MARKER)
TIME, PTTL, FENCED = 2, 4, 3  # positions in replies
NOT_GRANTED_FENCE = 5
WRITTEN = (TIME, 8, 9, 10)  # of a marker, its ready_at

Words = tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A command, the keys that a server has before it, and what of its reply depends on clocks."""

    name: str
    command: Command | Join
    before: Sequence[Words] = (TRUST,)
    varies: tuple[int, ...] = (TIME,)
    ready_at: int = 0


def cases() -> Iterator[Case]:
    """Yield the cases in the order of the commands on the page."""
    wants: dict[str, Any] = {**COMMON, "ttl": 10.0, "proposal": 1_700_000_000_000_000}
    refused = (TIME, PTTL, NOT_GRANTED_FENCE)
    yield Case("acquire: granted", Acquire(**wants), varies=(TIME, FENCED))
    yield Case("acquire: refused", Acquire(**wants), (TRUST, SET_THEIRS), refused)
    waits: dict[str, Any] = {**wants, "waiter": WAITER, "ticket": 1_700_000_000_000_000}
    yield Case("acquire: refused, and waits", Acquire(**waits), (TRUST, SET_THEIRS), refused)
    foreign = ("SET", LOCK, "a short value of another client")
    yield Case("acquire: refused by a lock of another library", Acquire(**wants), (TRUST, foreign),
               (TIME, NOT_GRANTED_FENCE))  # fmt: skip
    yield Case("acquire: not trusted", Acquire(**wants), ())
    later = 4_000_000_000_000_000
    yield Case("acquire: trusted later", Acquire(**wants), ready_at=later)
    buried = ("SET", D.tomb("a" * 32), "1", "PX", "60000")
    yield Case("acquire: released before it came", Acquire(**wants), (TRUST, buried))
    ahead = ("SET", FENCE, "9000000000000000")
    yield Case("acquire: a fence ahead of the clock", Acquire(**wants), (TRUST, ahead))
    corrupt = ("SET", FENCE, "no number")
    yield Case("acquire: a fence with letters", Acquire(**wants), (TRUST, corrupt))
    two = {**wants, "resources": ("order:1", "order:2")}
    yield Case("acquire: two resources granted", Acquire(**two), varies=(TIME, 3, 4))
    yield Case("acquire: the first of two refused", Acquire(**two), (TRUST, SET_THEIRS), refused)

    slot = {**wants, "limit": 3}
    yield Case("acquire: a slot is granted", Acquire(**slot), varies=(TIME, FENCED))
    yield Case("acquire: another slot is free", Acquire(**slot), (TRUST, SET_THEIRS),
               refused)  # fmt: skip
    second = D.lock(slot_resource("order:1", 1))
    third = D.lock(slot_resource("order:1", 2))
    every = tuple(("SET", key, THEIRS, "PX", "50000") for key in (LOCK, second, third))
    yield Case("acquire: no slot is free", Acquire(**slot), (TRUST, *every), refused)

    fences = {**COMMON, "fences": (1_700_000_000_000_001,)}
    yield Case("confirm: granted", Confirm(**fences), (TRUST, SET_LOCK))
    yield Case("confirm: refused", Confirm(**fences), (TRUST, SET_THEIRS), (TIME, PTTL))
    yield Case("confirm: absent", Confirm(**fences))
    yield Case("extend: granted", Extend(**COMMON, ttl=10.0), (TRUST, SET_LOCK))
    yield Case("extend: refused", Extend(**COMMON, ttl=10.0), (TRUST, SET_THEIRS), (TIME, PTTL))
    yield Case("extend: absent", Extend(**COMMON, ttl=10.0))
    yield Case("heal: set again", Heal(**fences, ttl=10.0))
    yield Case("heal: refused", Heal(**fences, ttl=10.0), (TRUST, SET_THEIRS), (TIME, PTTL))
    yield Case("release: granted", Release(**COMMON), (TRUST, SET_LOCK), ())
    yield Case("release: refused", Release(**COMMON), (TRUST, SET_THEIRS), (TIME, PTTL))
    yield Case("release: absent", Release(**COMMON), (TRUST,))
    yield Case("release: with a tombstone", Release(**COMMON, bury=True), (TRUST, SET_LOCK), ())
    queue = ("ZADD", QUEUE, "1700000000000000", WAITER)
    yield Case("release: calls a waiter", Release(**COMMON), (TRUST, SET_LOCK, queue))
    yield Case("release: a minimum hold", Release(**COMMON, left=3.0), (TRUST, SET_LOCK))

    take = Take(**fences, ttl=10.0, proposal=1, expected="c" * 32)
    given = ("SET", LOCK, "c" * 32 + ' {"host":"web-3","pid":3,"handed_on":1}', "PX", "50000")
    yield Case("take: granted", take, (TRUST, given), (TIME, 3))
    yield Case("take: refused", take, (TRUST, SET_THEIRS), (TIME, PTTL))
    yield Case("take: absent", take)
    used = ("SET", D.tomb("c" * 32), f"{'b' * 32} 1700000050000 {given[2]}", "PX", "60000")
    yield Case("take: the ticket was used", take, (TRUST, SET_THEIRS, used))

    undo = Restore(**COMMON, old="c" * 32)
    ours = ("SET", D.tomb("c" * 32), f"{'a' * 32} 4000000000000 {given[2]}", "PX", "60000")
    yield Case("restore: the expected token is restored", undo, (SET_LOCK, ours))
    yield Case(
        "restore: another client has replaced the token", undo, (SET_THEIRS, used), (TIME, PTTL)
    )
    yield Case("restore: absent", undo, ())

    join: dict[str, Any] = {"deployment": D, "run_id": "1" * 40}
    yield Case("join: no marker", Join(**join, mode="join"), ())
    yield Case("join: written", Join(**join, mode="mark"), (), WRITTEN)
    marked = ("SET", D.marker, f"{'1' * 40} 1 {D.fingerprint}")
    yield Case("join: known", Join(**join, mode="join"), (marked,))
    restarted = ("SET", D.marker, f"{'2' * 40} 1 {D.fingerprint}")
    yield Case("join: the server restarted", Join(**join, mode="join"), (restarted,), WRITTEN)
    other = ("SET", D.marker, f"{'1' * 40} 1 n=5,ttl=1")
    yield Case("join: another deployment", Join(**join, mode="join"), (other,))
    one = Deployment(names=("a",), failover=True)
    profile = ("SET", D.marker, f"{'1' * 40} 1 {one.fingerprint}")
    yield Case("join: one server, with PROFILE", Join(deployment=one, run_id="1" * 40, mode="join"),
               (profile,))  # fmt: skip
    without: dict[str, Any] = {"deployment": replace(one, failover=False), "run_id": "1" * 40}
    yield Case("join: the same server, without PROFILE", Join(**without, mode="join"), (profile,))


def sent(case: Case) -> tuple[list[str], list[bytes]]:
    """Return the KEYS and ARGV of a case, as they are sent."""
    argv = [ROUND, *case.command.arguments()]
    if isinstance(case.command, Command) and case.command.trusted:
        argv += [MARKER, case.ready_at]
    return list(case.command.keys()), [_encoded(one) for one in argv]


def _encoded(value: str | int | bytes) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def read(case: Case, reply: Any) -> dict[str, Any]:
    """Return what this package makes of a reply, without what depends on clocks."""
    decoded = decode(reply)
    assert decoded.number == ROUND
    if isinstance(case.command, Join):
        return {"status": decoded.status}
    vote = case.command.vote(*decoded[1:])
    known: dict[str, Any] = {"ballot": vote.ballot.value}
    if vote.rival is not None:
        known["in the way"] = vote.rival.decode()
    for key in ("absent", "reserved", "ahead", "taken"):
        value = getattr(vote, key)
        if value is not False and value not in (-1, b""):
            known[key] = value.decode() if isinstance(value, bytes) else value
    return known


class Server:
    """A connection to a server that sends and reads bytes."""

    def __init__(self, master: LocalMaster) -> None:
        self.socket = socket.create_connection(("127.0.0.1", master.port), timeout=30)

    def send(self, *words: str | bytes) -> bytes:
        """Send one command and return the bytes of its reply."""
        parts = [word if isinstance(word, bytes) else word.encode() for word in words]
        head = b"*%d\r\n" % len(parts)
        self.socket.sendall(head + b"".join(b"$%d\r\n%s\r\n" % (len(one), one) for one in parts))
        reader, received = hiredis.Reader(notEnoughData=None), b""
        while True:
            data = self.socket.recv(65_536)
            assert data, "the server closed the connection"
            received += data
            reader.feed(data)
            if reader.gets() is not None:
                return received

    def run(self, case: Case) -> bytes:
        """Return the bytes of the reply to a case."""
        self.send("FLUSHALL")
        for words in case.before:
            assert not self.send(*words).startswith(b"-")
        keys, argv = sent(case)
        return self.send(
            "EVAL",
            script(case.command.name, case.command.deployment)[0],
            str(len(keys)),
            *keys,
            *argv,
        )


def parse(reply: bytes) -> Any:
    """Return the value of one reply."""
    reader = hiredis.Reader()
    reader.feed(reply)
    return reader.gets()


def vectors(server: Server) -> Iterator[dict[str, Any]]:
    """Yield the vectors with the replies of a server."""
    for case in cases():
        keys, argv = sent(case)
        reply = server.run(case)
        yield {
            "name": case.name,
            "script": case.command.name,
            "before": [list(words) for words in case.before],
            "keys": keys,
            "argv": [one.hex() for one in argv],
            "reply": reply.hex(),
            "varies": list(case.varies),
            "reads": read(case, parse(reply)),
        }


def main() -> None:
    """Print the vectors with the replies of a server of this machine."""
    with local_masters(1) as (master,):
        document = {"round": ROUND, "vectors": list(vectors(Server(master)))}
    json.dump(document, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
