"""kazoo's clients, as the ZooKeeper store uses them: their threads, sockets, timeouts and log."""

from __future__ import annotations

import atexit
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.hosts import collect_hosts
from kazoo.security import CREATOR_ALL_ACL

from redlock_django.backends.zookeeper.settings import ZooKeeperSettings

THREADS = "redlock-zookeeper"
"""The beginning of the names of all threads of the store."""

_TLS = (
    "use_ssl",
    "ca",
    "certfile",
    "keyfile",
    "keyfile_password",
    "verify_certs",
    "check_hostname",
)


_UNKNOWN_AUTHORITY = (18, 19, 20, 21)  # X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT and following
_OTHER_HOST = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH


_LONGEST = 20.0  # seconds that a server has for a new connection, however long the session is


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """The threads and sockets of one client of kazoo.

    kazoo would wait for a host that vanished, or that accepts a connection and does not answer, as
    long as the session lasts, and lose the session. Here connecting to all hosts takes at most a
    third of the session, and so does the answer of a host to a new connection.
    """

    def __init__(self, session_timeout: float, hosts: int) -> None:
        super().__init__()
        self.session_timeout = session_timeout
        """In seconds, as the servers granted it once they have."""
        self._hosts = hosts
        self.failure = ""
        """Why the last attempt to connect failed, which kazoo does not report."""

    def start(self) -> None:
        super().start()
        # The store stops its clients. A child that was forked meanwhile would run this at its end,
        # and wait for threads and mutexes of the parent.
        atexit.unregister(self.stop)

    def create_connection(
        self,
        address: tuple[str, int],
        *,
        hostname: str,
        timeout: float,
        use_ssl: bool = False,
        **tls: Any,
    ) -> socket.socket:
        """Connect; kazoo's own function leaves the socket of a failed handshake open."""
        try:
            context = _tls_context(**tls) if use_ssl else None
            timeout = min(timeout, max(self._connecting / self._hosts, 0.1))
            connection = socket.create_connection(address, timeout)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if context is not None:
                    connection = context.wrap_socket(connection, server_hostname=hostname)
            except OSError:
                connection.close()
                raise
        except OSError as error:
            self.failure = explained_connecting(error)
            raise
        self.failure = ""
        return connection

    @property
    def _connecting(self) -> float:
        """The longest time for all hosts to connect, or for one to answer, in seconds."""
        return min(self.session_timeout / 3, _LONGEST)

    def limit_answers(self, client: KazooClient) -> None:
        """Limit how long a client waits for each answer to a new connection."""
        invoke = client._connection._invoke  # which kazoo uses for nothing else

        def limited(timeout: float, *request: Any, **options: Any) -> Any:
            return invoke(min(timeout, self._connecting), *request, **options)

        client._connection._invoke = limited

    @staticmethod
    def sleep_func(seconds: float) -> None:
        time.sleep(seconds)  # kazoo keeps the one from its import, which gevent may replace

    def spawn(self, func: Any, *args: Any, **options: Any) -> threading.Thread:
        thread = threading.Thread(
            target=func, args=args, kwargs=options, name=f"{THREADS}-kazoo", daemon=True
        )
        thread.start()
        return thread


def _tls_context(
    *,
    ca: str | None,
    certfile: str | None,
    keyfile: str | None,
    keyfile_password: str | None,
    verify_certs: bool,
    check_hostname: bool,
) -> ssl.SSLContext:
    """Return what kazoo would connect with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_hostname
    context.verify_mode = ssl.CERT_REQUIRED if verify_certs else ssl.CERT_NONE
    context.load_default_certs()
    if ca:
        context.load_verify_locations(ca)
    if certfile and keyfile:
        context.load_cert_chain(certfile, keyfile, keyfile_password)
    return context


def is_own_thread() -> bool:
    """Return whether the caller is a thread of a session, which cannot wait for answers."""
    return threading.current_thread().name.startswith(THREADS)


def new_client(settings: ZooKeeperSettings) -> KazooClient:
    """Return a new client, which connects to nothing yet."""
    options = dict(settings.options)
    if settings.has_credentials:
        options.setdefault("default_acl", CREATOR_ALL_ACL)
    if options.get("sasl_options"):
        options["sasl_options"] = dict(options["sasl_options"])  # kazoo adds to it
    if options.get("use_ssl") and options.get("verify_certs", True):
        options.setdefault("check_hostname", True)
    handler = Handler(settings.session_timeout, len(settings.hosts))
    client = KazooClient(
        hosts=settings.ensemble,
        timeout=settings.session_timeout,
        handler=handler,
        connection_retry={
            "max_tries": -1,
            "delay": 0.05,
            "max_delay": 1.0,
            "sleep_func": Handler.sleep_func,
        },
        logger=_logger,
        **options,
    )
    handler.limit_answers(client)
    return client


def on_session_timeout(client: KazooClient, note: Callable[[float], object]) -> None:
    """Call `note` with the session timeout that the servers granted, in seconds.

    It may be shorter than the one in the settings, and kazoo does not publish it.
    """
    connect = client._connection._connect

    def connected(*args: Any) -> tuple[float, float]:
        read_timeout, connect_timeout = connect(*args)  # in ms; the first is 2/3 of the session's
        granted = client.handler.session_timeout = read_timeout * 1.5 / 1000
        note(granted)
        return read_timeout, connect_timeout

    client._connection._connect = connected


def drop_connection(client: KazooClient) -> None:
    """Make a client connect again, to another server if there are several."""
    with suppress(OSError, AttributeError):  # it has no connection
        client._connection._socket.shutdown(socket.SHUT_RDWR)


def close_inherited(client: KazooClient) -> None:
    """Close the sockets that a forked child has of its parent's client, without sending a byte."""
    connection = client._connection
    for inherited in (connection._socket, connection._read_sock, connection._write_sock):
        if inherited is not None:
            inherited.close()


def stop(client: KazooClient) -> None:
    """End the session of a client, and close its connection."""
    with suppress(Exception):
        client.stop()
        client.close()


def command(settings: ZooKeeperSettings, host: str, words: bytes) -> str:
    """Return what a server answers to a command of four letters, on a connection of its own.

    Raises OSError if it does not answer.
    """
    client = new_client(settings)
    ((name, port),), _ = collect_hosts(host)
    connection = client.handler.create_connection(
        (name, port),
        hostname=name,
        timeout=settings.zookeeper_timeout,
        **{key: getattr(client, key) for key in _TLS},
    )
    answer = b""
    with connection:
        connection.settimeout(settings.zookeeper_timeout)
        connection.sendall(words)
        while True:  # without a condition: see docs/contributing/interrupts.md
            chunk = connection.recv(8192)
            if not chunk:
                break
            answer += chunk
    return answer.decode("utf-8", "replace")


def explained_connecting(error: OSError) -> str:
    """Return why a connection was not made, and which setting is to be changed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"TLS verification failed ({error.verify_message.rstrip('.')})"
        if error.verify_code in _OTHER_HOST:
            return f"{why}: HOSTS must name each server as its certificate does"
        if error.verify_code in _UNKNOWN_AUTHORITY:
            return f"{why}: OPTIONS['ca'] must name the file of the authority that issued it"
        return why
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or error}): OPTIONS['use_ssl'] is True"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, FileNotFoundError):
        return "a file that OPTIONS names does not exist: ca, certfile or keyfile"
    return error.strerror or str(error) or type(error).__name__


def with_failure(reason: str, client: KazooClient | None) -> str:
    """Return a reason, followed by why the last attempt of a client to connect failed."""
    failure = "" if client is None else client.handler.failure
    return f"{reason} ({failure})" if failure else reason


def explained(error: Exception) -> str:
    """Return what an error of kazoo means."""
    name = type(error).__name__.removesuffix("Error")
    if name in ("NoAuth", "AuthFailed"):
        return f"{name}: the servers do not allow it with the credentials in OPTIONS"
    if name == "KazooTimeout":
        return "no answer in time"
    return f"{name} {error}".strip()


def _without_requests(record: logging.LogRecord) -> bool:
    # kazoo logs every request, with passwords. The session reports lost connections itself.
    return record.levelno >= logging.ERROR


_logger = logging.getLogger("redlock_django.zookeeper")
_logger.addFilter(_without_requests)
