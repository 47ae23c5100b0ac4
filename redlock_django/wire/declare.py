"""Declaring masters trusted: what `manage.py redlock_init` does to them.

A master that is not known to have been up for long enough is not counted. Only a person
can know that it is new, and so cannot have forgotten anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from redis.exceptions import RedisError

from redlock_django.engine.commands import Terms, ms, script
from redlock_django.wire.address import Address
from redlock_django.wire.join import Unfit, ask, check, describe, prepare, read_info

_MARKER = re.compile(r"([0-9a-fA-F]+) (\d+) (\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a master stands, found out without changing anything.

    `trusted` is whether its votes count now; `fingerprint` is what its marker says of the
    deployment ("" where it has no marker); `key` is one lock or fence it holds ("" where
    it holds none).
    """

    address: Address
    run_id: str
    trusted: bool
    fingerprint: str
    key: str


def look(address: Address, terms: Terms, tolerate: frozenset[str], timeout: float) -> Standing:
    """How a master stands; `timeout` in seconds for each answer. Raises Unfit."""
    with _connection(address, timeout) as connection:
        info = read_info(ask(connection, ("INFO",))[0])
        check(info, tolerate)
        marker, (seconds, micros) = ask(connection, ("GET", terms.marker), ("TIME",))
        now = int(seconds) * 1_000_000 + int(micros)
        match = _MARKER.fullmatch(marker.decode(errors="replace")) if marker else None
        return Standing(
            address=address,
            run_id=info["run_id"],
            trusted=bool(match and match[1] == info["run_id"] and int(match[2]) <= now),
            fingerprint=match[3] if match else "",
            key=_any_key(connection, terms.lock("*")) or _any_key(connection, terms.fence("*")),
        )


def declare(
    standing: Standing,
    terms: Terms,
    timeout: float,
    how: Literal["trust", "reconfigure"],
) -> float:
    """Write a master's marker anew; return the seconds until it is trusted. Raises Unfit.

    "reconfigure" replaces another deployment's fingerprint, and waits for the larger of
    the two restart delays, so that every lock taken under the old numbers has run out.
    """
    old = re.search(r"delay=(\d+)", standing.fingerprint)
    delay = max(ms(terms.restart_delay), int(old[1]) if old else 0)
    with _connection(standing.address, timeout) as connection:
        (answer,) = ask(
            connection,
            (
                "EVAL",
                script("join")[0],
                1,
                terms.marker,
                0,
                standing.run_id,
                terms.fingerprint,
                delay * 1000,
                how,
            ),
        )
    _, status, now, ready_at, *_ = answer
    if status < 0:
        raise Unfit(f"its marker is of another deployment: {standing.fingerprint!r}")
    return float(max(0, ready_at - now) / 1_000_000)


@contextmanager
def _connection(address: Address, timeout: float) -> Iterator[Any]:
    connection = prepare(address, timeout)
    try:
        connection.connect()
        yield connection
    except (RedisError, OSError) as error:
        raise Unfit(describe(error, timeout)) from None
    finally:
        connection.disconnect()


def _any_key(connection: Any, pattern: str) -> str:
    cursor = b"0"
    while True:
        ((cursor, keys),) = ask(
            connection, ("SCAN", cursor.decode(), "MATCH", pattern, "COUNT", 1000)
        )
        if keys:
            return str(keys[0].decode(errors="replace"))
        if cursor == b"0":
            return ""
