"""Opening one connection: connect by redis-py, check the server, ask whether it is trusted.

Everything here blocks, for at most the connect timeout, so it runs on a thread of its own, never on
a caller's.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import hiredis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    InvalidResponse,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol.commands import COMMANDS, script
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.trust_marker import Join
from redlock_django.wire.clock import clock
from redlock_django.wire.servers.address import Address
from redlock_django.wire.servers.error_replies import explain, is_unknown_command, reply_text
from redlock_django.wire.servers.info import read_info, run_of
from redlock_django.wire.servers.trust import (
    Joined,
    NotUpYet,
    Trust,
    Unfit,
    Unmarked,
    check,
    read_trust,
)

NOT_REDIS = "does not answer as Redis does: check host and port, or the proxy before it"
"""The reason for a server that answers something else than Redis and Valkey do."""

KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Probes of an idle connection, in seconds: routers forget one after as little as two minutes."""


def join(
    address: Address,
    deployment: Deployment,
    membership: Membership,
    tolerate: frozenset[str],
    timeout: float,
) -> Joined:
    """Connect to a master, check it and ask for its trust. Raises Unfit.

    `timeout` is in seconds, for each step.
    """
    connection = prepare(address, timeout)
    try:
        connection.connect()
        inspected = clock()
        info = ask_info(connection)
        warnings = check(info, tolerate)
        run_id = run_of(info)
        trust = _ask_for_trust(connection, address.name, run_id, deployment, membership)
        taken: socket.socket = connection._sock
        pushes = address.kwargs.get("protocol") != 2 and speaks_resp3(taken)
        # From here on the socket belongs to the link: redis-py must neither close nor shut it down.
        connection._sock = None
    except Unfit:
        raise
    except (RedisError, OSError) as error:
        raise Unfit(describe(error, timeout)) from None
    finally:
        connection.disconnect()
    if taken.family in (socket.AF_INET, socket.AF_INET6):
        _keep_alive(taken, address.kwargs.get("socket_keepalive_options") or {})
    return Joined(taken, run_id, trust, warnings, inspected, pushes)


def _ask_for_trust(
    connection: Any, name: str, run_id: str, deployment: Deployment, membership: Membership
) -> Trust:
    """Load all scripts, and run join.lua; mark the master if this client may do that.

    Raises Unfit.
    """
    scripts = (*(command.name for command in COMMANDS), Join.name)
    loaded: list[tuple[str | int | bytes, ...]] = [
        ("SCRIPT", "LOAD", script(each, deployment.failover)[0]) for each in scripts
    ]
    while True:
        sent = clock()
        mode = "mark" if membership.may_mark(sent) else "join"
        query = Join(
            deployment=deployment, run_id=run_id, mode=mode, fingerprint=membership.fingerprint
        )
        *_, answer = ask(connection, *loaded, query.call(text=True))
        try:
            return read_trust(membership, name, run_id, answer, sent, clock())
        except Unmarked:
            # Its marker may have been the last one that had to be known before one is written.
            if not membership.may_mark(clock()):
                raise
        loaded = []


def _keep_alive(taken: socket.socket, given: Mapping[int, int]) -> None:
    """Make the kernel probe an idle connection; options from the settings are not changed."""
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        option = getattr(socket, name, None)  # not every system has them
        if option is not None and option not in given:
            taken.setsockopt(socket.IPPROTO_TCP, option, value)


def prepare(address: Address, timeout: float) -> Any:
    """Return a connection of redis-py, not connected yet; `timeout` is in seconds for each step.

    Raises NotUpYet if no Sentinel knows where it leads to, and Unfit if a file for TLS is missing.
    """
    for option in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        path = address.kwargs.get(option)
        if path and not os.access(path, os.R_OK):
            raise Unfit(f"is not connected to: {option} names {path!r}, which cannot be read")
    return address.connection_class(
        **{
            **address.kwargs,
            "protocol": 2,  # RESP3 is negotiated last: not every server supports it
            **(_primary_of(address, timeout / 2) if address.sentinels else {}),
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            # The ten retries with back-off of redis-py make a dead master cost seconds, and one of
            # them may repeat an acquire whose reply was lost.
            "retry": Retry(NoBackoff(), 0),
        }
    )


def _primary_of(address: Address, timeout: float) -> dict[str, Any]:
    """Return host and port of the primary of a service, as the first Sentinel that answers says.

    Sentinels are asked one after the other, each for `timeout` seconds at most for each step.
    Raises NotUpYet.
    """
    service, sentinels, answers = address.kwargs["host"], address.sentinels, address.answers
    why = []
    for turn in range(len(sentinels)):
        index = (answers[0] + turn) % len(sentinels)
        name, connection = sentinels[index].name, prepare(sentinels[index], timeout)
        try:
            connection.connect()
            (found,) = ask(connection, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service))
        except (RedisError, OSError) as error:
            is_other = isinstance(error, ResponseError) and is_unknown_command(str(error))
            reason = "is not a Sentinel" if is_other else describe(error, timeout)
            why.append(f"Sentinel {name} {reason}")
            continue
        finally:
            connection.disconnect()
        if found is None:
            why.append(f"Sentinel {name} does not know the service {service!r}")
        elif not (isinstance(found, list) and len(found) == 2 and found[1].isdigit()):
            why.append(f"Sentinel {name} is not a Sentinel")  # a program that answers otherwise
        else:
            answers[0] = index
            host, port = found
            return {"host": host.decode(), "port": int(port)}
    raise NotUpYet(f"cannot be found: {'; '.join(why)}")


def speaks_resp3(connected: socket.socket) -> bool:
    """Switch a server to RESP3; return False if it does not support it. Raises OSError."""
    connected.sendall(b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n")
    parser = hiredis.Reader()
    while (answer := parser.gets()) is False:
        data = connected.recv(65536)
        if not data:
            raise ConnectionResetError("closed the connection")
        parser.feed(data)
    return isinstance(answer, dict)


def ask(connection: Any, *commands: tuple[str | int | bytes, ...]) -> list[Any]:
    """Send a pipeline of commands and return the answers; raises the first error among them."""
    connection.send_packed_command(connection.pack_commands(commands))
    answers = []
    error: ResponseError | None = None
    for _ in commands:
        try:
            answers.append(connection.read_response())
        except ResponseError as failure:
            error = error or failure
    if error is not None:
        raise error
    return answers


def ask_info(connection: Any) -> dict[str, str]:
    """Return the INFO of a server. Raises Unfit if it hides it, and errors of the connection."""
    try:
        answer = ask(connection, ("INFO",))[0]
    except ResponseError as error:
        if not is_unknown_command(str(error)):
            raise
        raise Unfit(
            "refuses INFO, without which no restart and no failover is noticed: use no proxy that "
            "hides it"
        ) from None
    info = read_info(answer) if isinstance(answer, bytes | str) else {}
    if "redis_version" not in info:
        raise Unfit(NOT_REDIS)
    return info


def describe(error: Exception, timeout: float) -> str:
    """Return why a connection failed, without anything that could contain a secret."""
    if isinstance(error, RedisTimeoutError | TimeoutError):
        return f"did not answer within {timeout:g} s"
    if isinstance(error, InvalidResponse):
        return NOT_REDIS
    reply = reply_text(error)
    if isinstance(error, ResponseError | BusyLoadingError | AuthenticationError):
        return explain(reply)
    if "max number of clients reached" in reply:  # redis-py raises a ConnectionError
        return "has too many clients (maxclients)"
    cause = error.__context__ if isinstance(error.__context__, OSError) else error
    if isinstance(cause, ConnectionRefusedError):
        return "refused the connection"
    if isinstance(cause, OSError) and cause.strerror:
        return f"could not be reached: {cause.strerror}"
    if "closed" in reply:
        return "closed the connection"
    return f"could not be reached: {type(error).__name__}"
