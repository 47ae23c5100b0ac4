"""Credentials for ZooKeeper: TLS, SASL and digests. The reason of a failure names the setting."""

from __future__ import annotations

import gc
import logging
import shutil
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.views.debug import ExceptionReporter
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from redlock_django import lock
from redlock_django.backends.zookeeper.backend import ZooKeeperBackend
from redlock_django.backends.zookeeper.client import THREADS
from redlock_django.engine.validity import LeaseState
from redlock_django.exceptions import StoreUnavailable
from redlock_django.locking.services import locks
from redlock_django.operate.health import master_status
from tests import inspecting
from tests.authority import make_certificates
from tests.conftest import installed
from tests.contract.stores import HOLDER, ZOOKEEPER, ZooKeeper, change, zookeeper_of
from tests.inspecting import free
from tests.waiting import until
from tests.zookeeper import ZooKeeperServer, local_zookeeper

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
    # Later than in time, on a busy host.
    until(lambda: inspecting.health(backend)[0].reason.startswith(why), "the health says why")
    locks.close()


JARS = Path("/usr/share/java")
SECRET = "canary-9317"
JAAS = f"""Server {{
  org.apache.zookeeper.server.auth.DigestLoginModule required user_locks="{SECRET}";
}};"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates."""
    folder = make_certificates(tmp_path_factory.mktemp("tls"), "server", "IP:127.0.0.1")
    both = [(folder / name).read_text() for name in ("server.key", "server.pem")]
    (folder / "both.pem").write_text("".join(both))
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ZooKeeperServer]:
    """A server with both, which also accepts connections without them."""
    pytest.importorskip("puresasl")
    # Debian's ZooKeeper does not name all parts of Netty that TLS needs.
    netty = ":".join(map(str, sorted(JARS.glob("netty-*4*.jar"))))
    (folder / "jaas").write_text(JAAS)
    options = {
        "java.security.auth.login.config": folder / "jaas",
        "zookeeper.authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "zookeeper.serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "zookeeper.client.portUnification": "true",
        "zookeeper.ssl.keyStore.location": folder / "both.pem",
        "zookeeper.ssl.trustStore.location": folder / "ca.pem",
        "zookeeper.ssl.clientAuth": "none",
    }
    java = " ".join(f"-D{name}={value}" for name, value in options.items())
    with installed(local_zookeeper(java=f"-Xbootclasspath/a:{netty} {java}")) as (server,):
        yield server


def _section(server: ZooKeeperServer, **options: Any) -> dict[str, Any]:
    section = {"BACKEND": ZOOKEEPER, "HOSTS": [server.host], "ZOOKEEPER_TIMEOUT": 20}
    return {**section, "SESSION_TIMEOUT": 30, "OPTIONS": options}


def _sasl(password: str = SECRET) -> dict[str, str]:
    return {"mechanism": "DIGEST-MD5", "username": "locks", "password": password}


# `uv run --with pure-sasl pytest -m nightly` on this file runs it.
@pytest.mark.nightly
@pytest.mark.attack
def test_a_lock_over_tls_belongs_to_the_user_of_sasl(
    server: ZooKeeperServer, folder: Path, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.NOTSET)
    tls = {"use_ssl": True, "ca": str(folder / "ca.pem")}
    settings.REDLOCK = {
        "default": _section(server, **tls, sasl_options=_sasl()),
        "plain": _section(server),
        "wrong password": _section(server, **tls, sasl_options=_sasl(f"{SECRET}-wrong")),
        "unknown authority": {
            **_section(server, use_ssl=True, sasl_options=_sasl()),
            "ZOOKEEPER_TIMEOUT": 1,
        },
    }
    locks["default"].backend.declare_new()
    with lock("order:1", wait=10) as held:
        held.extend()
        assert [one.counted for one in master_status()] == [True]
        for using, problem in {
            "plain": "NoAuth: the servers do not allow it",
            "wrong password": "AuthFailed: the servers do not allow it",
            "unknown authority": r"TLS verification failed \(.*OPTIONS\['ca'\] must name",
        }.items():
            with pytest.raises(StoreUnavailable, match=problem) as refused:
                lock("order:1", using=using).acquire()
            assert SECRET not in f"{refused.value!r} {refused.value.tally}"
    assert SECRET not in caplog.text


# Digests.


@pytest.fixture
def guarded(request: pytest.FixtureRequest, settings: Settings) -> ZooKeeperBackend:
    """The store with credentials."""
    ZooKeeper(request, settings)
    change(settings, OPTIONS={"auth_data": [("digest", f"locks:{SECRET}")]})
    return zookeeper_of()


@pytest.mark.attack
def test_with_credentials_no_other_client_can_delete_locks(
    guarded: ZooKeeperBackend, client: KazooClient
) -> None:
    lease = guarded.acquire(("order:1",), 30, 0, HOLDER)
    queue = guarded.session.tree.queue("order:1")
    with pytest.raises(NoAuthError):
        client.get_children(queue)
    with pytest.raises(NoAuthError):
        client.delete(guarded.session.tree.root, recursive=True)
    assert free(guarded, "order:1").outcome.name == "RELEASED"
    assert guarded.extend(lease, 30)[0] is LeaseState.LOST


@pytest.mark.attack
def test_wrong_credentials_are_refused_and_never_shown(
    guarded: ZooKeeperBackend, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.NOTSET)
    guarded.acquire(("order:1",), 30, 0, HOLDER)
    wrong = f"{SECRET}-wrong"
    change(settings, OPTIONS={"auth_data": [("digest", f"locks:{wrong}")]})
    backend = zookeeper_of()
    with pytest.raises(StoreUnavailable, match="NoAuth: the servers do not allow it") as refused:
        backend.acquire(("order:1",), 30, 0, HOLDER)
    page = inspecting.held(backend)
    assert page.silent
    error = refused.value
    assert error.__traceback__ is not None
    frames = error.__traceback__.tb_next  # without this function's own
    debug_page = ExceptionReporter(None, type(error), error, frames)
    shown = [str(error), repr(error.tally), repr(backend.settings), str(page), caplog.text]
    assert SECRET not in "".join([*shown, debug_page.get_traceback_html()])
