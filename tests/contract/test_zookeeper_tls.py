"""ZooKeeper over TLS that fails: the reason names the setting to change. No ZooKeeper is needed."""

from __future__ import annotations

import gc
import shutil
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.backends.zookeeper.client import THREADS
from redlock_django.exceptions import StoreUnavailable
from redlock_django.locking.services import locks
from tests import inspecting
from tests.contract.stores import HOLDER, ZOOKEEPER, zookeeper_of
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings


@pytest.fixture(autouse=True)
def _sockets_are_closed() -> Iterator[None]:
    """Find the sockets that a test leaves to the garbage collector, whose warnings are errors."""
    yield
    locks.close()
    until(lambda: not any(one.name.startswith(THREADS) for one in threading.enumerate()), "the end")
    gc.collect()


class Listener(socketserver.ThreadingTCPServer):
    """A server that begins TLS, or answers without it, and then closes the connection."""

    daemon_threads = True
    context: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(60)
        try:
            if self.context is None:
                request.recv(1)
                request.sendall(b"plain text, not TLS\n")
            else:
                self.context.wrap_socket(request, server_side=True).close()
        except OSError:
            pass  # the client refuses the certificate


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `NAME.pem` and `NAME.key`, for 127.0.0.1 and for another host."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl program is not installed")
    folder = tmp_path_factory.mktemp("certificates")
    for name, host in (("own", "IP:127.0.0.1"), ("other", "DNS:zookeeper.example.com")):
        line = (
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
            f"-subj /CN={name} -addext subjectAltName={host} -keyout {name}.key -out {name}.pem"
        )
        subprocess.run(["openssl", *line.split()], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener(("127.0.0.1", 0), socketserver.BaseRequestHandler) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield listener
        listener.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("certificate", "ca", "why"),
    [
        ("own", None, "TLS verification failed (self-signed certificate): OPTIONS['ca'] must name"),
        ("own", "other", "TLS verification failed (self-signed certificate): OPTIONS['ca'] must"),
        ("other", "other", "TLS verification failed (IP address mismatch, certificate is not "),
        ("own", "missing", "a file that OPTIONS names does not exist: ca, certfile or keyfile"),
        ("", None, "TLS failed ("),
    ],
)
def test_why_no_connection_is_made(
    listener: Listener,
    certificates: Path,
    settings: Settings,
    certificate: str,
    ca: str | None,
    why: str,
) -> None:
    if certificate:
        listener.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        name = str(certificates / certificate)
        listener.context.load_cert_chain(f"{name}.pem", f"{name}.key")
    options = {"use_ssl": True, **({"ca": str(certificates / f"{ca}.pem")} if ca else {})}
    host = f"127.0.0.1:{listener.server_address[1]}"
    section = {"BACKEND": ZOOKEEPER, "HOSTS": [host], "OPTIONS": options}
    settings.REDLOCK = {"default": {**section, "ZOOKEEPER_TIMEOUT": 0.2}}
    backend = zookeeper_of()
    backend.connect()

    def failed() -> bool:
        client = backend.session._client
        return client is not None and client.handler.failure.startswith(why)

    until(failed, what=why)
    with pytest.raises(StoreUnavailable) as refused:
        backend.acquire(("order:1",), 30, 0, HOLDER)
    assert f"{host}: not connected yet ({why}" in str(refused.value)
    locks.close()


def test_the_health_names_the_reason_too(
    listener: Listener, certificates: Path, settings: Settings
) -> None:
    listener.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listener.context.load_cert_chain(certificates / "own.pem", certificates / "own.key")
    host = f"127.0.0.1:{listener.server_address[1]}"
    section = {"BACKEND": ZOOKEEPER, "HOSTS": [host], "OPTIONS": {"use_ssl": True}}
    settings.REDLOCK = {"default": {**section, "ZOOKEEPER_TIMEOUT": 0.3}}
    backend, why = zookeeper_of(), "TLS verification failed (self-signed certificate): OPTIONS"
    # Later than in time, on a busy host.
    until(lambda: inspecting.health(backend)[0].reason.startswith(why))
    locks.close()
