"""The examples of docs/how-to/testing.md pass in a separate pytest process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT, Page


@pytest.mark.slow
@pytest.mark.live
def test_every_snippet_passes(tmp_path: Path) -> None:
    code = "\n\n".join(Page("docs/how-to/testing.md").blocks())
    (tmp_path / "test_page.py").write_text(code)
    # This pytest runs next to the suite on a machine that may have few cores. Long timeouts keep
    # the results independent of the load.
    (tmp_path / "patient.py").write_text(
        "from testproject.settings import *\n"
        'REDLOCK["default"] |= {"MASTER_TIMEOUT": 4.0, "MAX_CLOCK_SKEW": 4.0}\n'
    )
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env={
            **os.environ,
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
            "DJANGO_SETTINGS_MODULE": "patient",
            "PYTEST_ADDOPTS": "",
        },
    )  # fmt: skip
    many = len(re.findall(r"^ *(?:async )?def test_", code, re.MULTILINE))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{many} passed" in done.stdout
