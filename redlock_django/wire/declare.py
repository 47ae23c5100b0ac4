"""Declaring masters trusted: what `manage.py redlock_init` does to them.

A master that is not known to have been up for long enough is not counted. Only a person
can know that it is new, and so cannot have forgotten anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from redis.exceptions import RedisError

from redlock_django.engine.commands import Deployment, script
from redlock_django.wire.address import Address
from redlock_django.wire.join import Unfit, ask, check, describe, prepare, read_info, read_marker

CLOSED = ",closed"
"""Behind the fingerprint of a master that is between two deployments."""


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


def look(
    address: Address, deployment: Deployment, tolerate: frozenset[str], timeout: float
) -> Standing:
    """How a master stands; `timeout` in seconds for each answer. Raises Unfit."""
    with _connection(address, timeout) as connection:
        info = read_info(ask(connection, ("INFO",))[0])
        check(info, tolerate)
        marker, (seconds, micros) = ask(connection, ("GET", deployment.marker), ("TIME",))
        now = int(seconds) * 1_000_000 + int(micros)
        known = read_marker(marker)
        return Standing(
            address=address,
            run_id=info["run_id"],
            trusted=bool(known and known.run_id == info["run_id"] and known.ready_at <= now),
            fingerprint=known.deployment if known else "",
            key=_any_key(connection, deployment.lock("*"))
            or _any_key(connection, deployment.fence("*")),
        )


def declare(
    standing: Standing,
    deployment: Deployment,
    timeout: float,
    how: Literal["trust", "reconfigure"],
    after: Sequence[Standing] = (),
) -> float:
    """Write a master's marker anew; return the seconds until it is trusted. Raises Unfit.

    "reconfigure" replaces another deployment's fingerprint, and waits for the largest of
    the restart delays, so that every lock taken under the old numbers has run out: those of
    this master and of all that it comes `after`.
    """
    delay, _ = drained([s.fingerprint for s in (standing, *after)], deployment.fingerprint)
    return _mark(standing, deployment.marker, deployment.fingerprint, delay, timeout, how)


def close(standing: Standing, deployment: Deployment, timeout: float) -> None:
    """Let no client count a master, old or new, until it is declared. Raises Unfit."""
    # With the old numbers, which whoever declares it has to know, if we break off here.
    fingerprint = (standing.fingerprint or deployment.fingerprint).removesuffix(CLOSED) + CLOSED
    _mark(standing, deployment.marker, fingerprint, 0, timeout, "reconfigure")


def drained(old: Sequence[str], new: str) -> tuple[int, bool]:
    """Give the ms after which no lock of `old` fingerprints is in the way of the new one's.

    And whether the masters change, their number or their groups. Where resources move to
    another group, it has never heard of their locks, so that even masters which forget
    nothing must wait until the locks have run out.
    """
    said = [
        dict(re.findall(r"(\w+)=(\w+)", fingerprint)) for fingerprint in (*filter(None, old), new)
    ]
    ttl, skew, delay = (
        max(int(numbers.get(key, 0)) for numbers in said) for key in ("ttl", "skew", "delay")
    )
    grown, moves = (len({numbers.get(key) for numbers in said}) > 1 for key in ("n", "groups"))
    return max(delay, ttl * 102 // 100 + 5 * skew if moves else 0), grown or moves


def _mark(
    standing: Standing, key: str, fingerprint: str, delay: int, timeout: float, how: str
) -> float:
    argv = (standing.run_id, fingerprint, delay * 1000, how)
    with _connection(standing.address, timeout) as connection:
        (answer,) = ask(connection, ("EVAL", script("join")[0], 1, key, 0, *argv))
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
