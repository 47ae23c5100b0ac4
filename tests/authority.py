"""Certificates of an authority that a test trusts, made with openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificates(folder: Path, name: str, host: str) -> Path:
    """Make `ca.pem`, and `NAME.pem` and `NAME.key` for a host such as IP:127.0.0.1, in a folder.

    Return the folder; skip the test if openssl is not installed.
    """
    if shutil.which("openssl") is None:
        pytest.skip("the openssl program is not installed")
    (folder / "names").write_text(f"subjectAltName={host}\n")
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    usage = "-addext keyUsage=critical,keyCertSign,cRLSign"  # required since Python 3.13
    for line in (
        f"req -x509 {key} {usage} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority",
        f"req {key} -keyout {name}.key -out request -subj /CN={name}",
        f"x509 -req -in request -out {name}.pem -extfile names -CA ca.pem -CAkey ca.key -days 2",
    ):
        subprocess.run(["openssl", *line.split()], cwd=folder, check=True, capture_output=True)
    return folder
