"""ZooKeeper with TLS and SASL: `uv run --with pure-sasl pytest -m nightly` on this file."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django import lock
from redlock_django.exceptions import StoreUnavailable
from redlock_django.locking.services import locks
from redlock_django.operate.health import master_status
from tests.contract.stores import ZOOKEEPER
from tests.zookeeper import ZooKeeperServer, local_zookeeper

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.nightly

JARS = Path("/usr/share/java")
SECRET = "canary-of-sasl"
JAAS = f"""Server {{
  org.apache.zookeeper.server.auth.DigestLoginModule required user_locks="{SECRET}";
}};"""


def _certificates(folder: Path) -> None:
    """Make ca.pem, and both.pem, a certificate for 127.0.0.1 with its key."""
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    key = ["-newkey", "rsa:2048", "-nodes"]
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"]
    for command in (
        ["req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=CA"],
        ["req", *key, "-keyout", "server.key", "-out", "request", "-subj", "/CN=zookeeper"],
        ["x509", "-req", "-in", "request", "-out", "server.pem", *signed],
    ):
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)
    both = [(folder / name).read_text() for name in ("server.key", "server.pem")]
    (folder / "both.pem").write_text("".join(both))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates."""
    folder = tmp_path_factory.mktemp("tls")
    _certificates(folder)
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
    try:
        with local_zookeeper(java=f"-Xbootclasspath/a:{netty} {java}") as (server,):
            yield server
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    locks.close()


def _section(server: ZooKeeperServer, **options: Any) -> dict[str, Any]:
    section = {"BACKEND": ZOOKEEPER, "HOSTS": [server.host], "ZOOKEEPER_TIMEOUT": 20}
    return {**section, "SESSION_TIMEOUT": 30, "OPTIONS": options}


def _sasl(password: str = SECRET) -> dict[str, str]:
    return {"mechanism": "DIGEST-MD5", "username": "locks", "password": password}


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
