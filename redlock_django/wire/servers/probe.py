"""A connection of redis-py to one server, to ask it: for handshakes, inspection and declarations.

Everything here blocks, for at most the time limit of each step, so it is never done on a caller's
thread.
"""

from __future__ import annotations

import math
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

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

from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.query import Answer, Query
from redlock_django.wire.clock import clock
from redlock_django.wire.servers.address import Address
from redlock_django.wire.servers.error_replies import explain, is_unknown_command, reply_text
from redlock_django.wire.servers.info import read_info
from redlock_django.wire.servers.trust import NotUpYet, Unfit

NOT_REDIS = "does not answer as Redis does: check host and port, or the proxy before it"
"""The reason for a server that answers something else than Redis and Valkey do."""

Words = tuple[str | int | bytes, ...]
"""A command: its name and its arguments."""


class ErrorReply(Unfit):
    """A server answers with an error; `reply` is the error, which may hold secrets."""

    def __init__(self, reply: str) -> None:
        super().__init__(explain(reply))
        self.reply = reply


class Probe:
    """A connection to one server, and the questions to it; a context manager that closes it.

    `timeout` is in seconds, for each step. All of it raises Unfit: ErrorReply for an error, and
    NotUpYet for a server that cannot be reached, or does not answer in time.
    """

    def __init__(self, address: Address, timeout: float) -> None:
        self._timeout = timeout
        self._connection = _prepared(address, timeout)
        try:
            with reaching(timeout):
                self._connection.connect()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def take(self) -> socket.socket:
        """Return the socket, which redis-py neither closes nor shuts down from here on."""
        taken: socket.socket = self._connection._sock
        self._connection._sock = None
        return taken

    def ask(self, *commands: Words) -> list[Any]:
        """Send a pipeline of commands and return the answers; raises the first error among them."""
        answers, errors = [], []
        with reaching(self._timeout):
            self._connection.send_packed_command(self._connection.pack_commands(commands))
            for _ in commands:
                # redis-py would end the connection for an error of AUTH, which is an answer, too: a
                # proxy that authenticates by itself may give it to HELLO.
                try:
                    answers.append(self._connection.read_response(disconnect_on_error=False))
                except (AuthenticationError, ResponseError) as error:
                    errors.append(error)
        if errors:
            raise ErrorReply(reply_text(errors[0]))
        return answers

    def info(self) -> dict[str, str]:
        """Return what the server reports in INFO."""
        try:
            (answer,) = self.ask(("INFO",))
        except ErrorReply as error:
            if not is_unknown_command(error.reply):
                raise
            raise Unfit(
                "refuses INFO, without which no restart and no failover is noticed: use no proxy "
                "that hides it"
            ) from None
        info = read_info(answer) if isinstance(answer, bytes | str) else {}
        if "redis_version" not in info:
            raise Unfit(NOT_REDIS)
        return info

    def run(self, query: Query[Answer], /, *before: Words, text: bool = True) -> Answer:
        """Return the answer to a query, by EVAL or EVALSHA, after other commands."""
        *_, reply = self.ask(*before, query.call(text=text))
        with reading():
            return query.read(reply)

    def time(self) -> int:
        """Return what the server's clock shows, in µs."""
        (answer,) = self.ask(("TIME",))
        with reading():
            seconds, micros = answer
            return int(seconds) * 1_000_000 + int(micros)

    def stored_key(self, deployment: Deployment, within: float = math.inf) -> str:
        """Return a lock or a fence that is stored, "" if none is found within so many seconds.

        At least 1000 keys are looked at.
        """
        prefixes = (deployment.lock("").encode(), deployment.fence("").encode())
        match = f"{deployment.prefix}:[lf]*"  # both at once; it may match keys of others
        cursor, until = b"0", clock() + within
        while True:
            (answer,) = self.ask(("SCAN", cursor.decode(), "MATCH", match, "COUNT", 1000))
            with reading():
                cursor, keys = answer
                # Not a comprehension: Python 3.13 makes its loop a part of this block, and a signal
                # would skip the handler (docs/contributing/interrupts.md).
                stored = list(filter(lambda key: key.startswith(prefixes), keys))
            if stored:
                return str(min(stored).decode(errors="replace"))
            if cursor == b"0" or clock() >= until:
                return ""


@contextmanager
def reading() -> Iterator[None]:
    """Raise Unfit for an answer that is not of the kind that was asked for."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, struct.error):
        raise Unfit(NOT_REDIS) from None


@contextmanager
def reaching(timeout: float) -> Iterator[None]:
    """Raise Unfit for the errors of a connection whose steps may each take so many seconds."""
    try:
        yield
    except (AuthenticationError, ResponseError) as error:
        raise ErrorReply(reply_text(error)) from None
    except (RedisError, OSError) as error:
        raise NotUpYet(_describe(error, timeout)) from None


def _prepared(address: Address, timeout: float) -> Any:
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
        name = sentinels[index].name
        try:
            with Probe(sentinels[index], timeout) as sentinel:
                (found,) = sentinel.ask(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service))
        except (ErrorReply, NotUpYet) as error:
            is_other = isinstance(error, ErrorReply) and is_unknown_command(error.reply)
            why.append(f"Sentinel {name} {'is not a Sentinel' if is_other else error}")
            continue
        if found is None:
            why.append(f"Sentinel {name} does not know the service {service!r}")
        elif not (isinstance(found, list) and len(found) == 2 and found[1].isdigit()):
            why.append(f"Sentinel {name} is not a Sentinel")  # a program that answers otherwise
        else:
            answers[0] = index
            host, port = found
            return {"host": host.decode(), "port": int(port)}
    raise NotUpYet(f"cannot be found: {'; '.join(why)}")


def _describe(error: Exception, timeout: float) -> str:
    """Return why a connection failed, without anything that could contain a secret."""
    if isinstance(error, RedisTimeoutError | TimeoutError):
        return f"did not answer within {timeout:g} s"
    if isinstance(error, InvalidResponse):
        return NOT_REDIS
    reply = reply_text(error)
    if isinstance(error, BusyLoadingError):
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
