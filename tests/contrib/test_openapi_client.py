"""A client that openapi-python-client generates from a schema handles a refusal and a replay."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from django.urls import path
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from redlock_django.testing import held_elsewhere
from tests.app.conftest import MEMORY
from tests.contrib.openapi_apis import (
    ninja_api,
    ninja_schema,
    rest_framework_schema,
    rest_framework_urls,
)

GENERATOR = "openapi-python-client==0.29.1"
PROGRAM = """
import json, sys
from client import Client
from client.api.{module} import pay
from client.models import RedlockProblem423, RedlockProblem423Code

client = Client(base_url=sys.argv[1])
first, again = (pay.sync_detailed(7, client=client, idempotency_key="k-1") for _ in range(2))
busy = pay.sync_detailed(8, client=client, idempotency_key="k-2")
assert isinstance(busy.parsed, RedlockProblem423), busy
assert busy.parsed.code is RedlockProblem423Code.RESOURCE_LOCKED
assert busy.parsed.retryable is True
assert first.parsed == again.parsed
replayed = [one.headers["Idempotent-Replayed"] for one in (first, again)]
print(json.dumps([first.status_code, again.status_code, busy.status_code, *replayed]))
"""


@pytest.mark.nightly
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("framework", "module"), [("drf", "orders"), ("ninja", "default")])
def test_a_generated_client_handles_a_refusal_and_a_replay(
    urls: Callable[..., None],
    settings: Settings,
    plain: None,
    live_server: LiveServer,
    tmp_path: Path,
    framework: str,
    module: str,
) -> None:
    settings.REDLOCK = {"default": {"BACKEND": MEMORY}}
    if framework == "drf":
        urls(*rest_framework_urls())
        schema = rest_framework_schema()
    else:
        api = ninja_api("generated", is_async=False)
        urls(path("", api.urls))
        schema = ninja_schema(api)
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    python, program = tmp_path / "env/bin/python", tmp_path / "program.py"
    program.write_text(PROGRAM.format(module=module))
    generate = ("generate", "--path", "schema.json", "--meta", "none", "--output-path", "client")
    for command in (
        ("uv", "venv", "-q", "--no-project", "--python", sys.executable, "env"),
        ("uv", "pip", "install", "-q", "--python", python, GENERATOR),
        (tmp_path / "env/bin/openapi-python-client", *generate),
    ):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    with held_elsewhere("order:8"):
        done = subprocess.run(
            [python, program, live_server.url],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [201, 201, 423, "false", "true"]
