"""The program of docs/how-to/clients.md, sent by Node to a served site."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from redlock_django import idempotent, lock, lock_resource
from redlock_django.signals import lock_refused
from tests.operate.commands import THREE_IN_MEMORY
from tests.pages import Page

PROGRAM = """
const whole = fetch;
let lost = 0;
globalThis.fetch = async (...request) => {
  const answer = await whole(...request);
  if (lost++ < process.env.LOST) throw new TypeError("fetch failed");
  return answer;
};
const [url, body, headers] = process.argv.slice(1);
const answer = await send(url, JSON.parse(body), JSON.parse(headers));
console.log(JSON.stringify({
  status: answer.status,
  replayed: answer.headers.get("Idempotent-Replayed"),
  body: await answer.json(),
}));
"""
Send = Callable[..., dict[str, Any]]
paid: list[int] = []


@csrf_exempt
@idempotent(anonymous_scope=lambda request, **kwargs: "shop")
@lock_resource("order:<int:pk>")
def pay(request: HttpRequest, pk: int) -> HttpResponse:
    paid.append(json.loads(request.body)["amount"])
    return JsonResponse({"payments": len(paid)}, status=201)


urlpatterns = [path("orders/<int:pk>/pay/", pay)]


@pytest.fixture
def send(live_server: LiveServer, settings: Settings, tmp_path: Path) -> Send:
    """Return a function that sends a request by the program of the page."""
    if (node := shutil.which("node")) is None:
        pytest.skip("node is not installed")
    (code,) = Page("docs/how-to/clients.md").blocks("js")
    settings.ROOT_URLCONF = __name__
    settings.REDLOCK = {"default": {**THREE_IN_MEMORY, "RESTART_DELAY": 0}}
    paid.clear()

    def sent(body: dict[str, Any], lost: int = 0, **headers: str) -> dict[str, Any]:
        done = subprocess.run(
            [node, "--input-type=module", "--eval", code + PROGRAM, "--",
             f"{live_server.url}/orders/7/pay/", json.dumps(body), json.dumps(headers)],
            capture_output=True, text=True, timeout=60, env={"LOST": str(lost)},
        )  # fmt: skip
        assert not done.stderr, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    return sent


@pytest.mark.slow
def test_a_request_is_sent_again_until_the_lock_is_free(send: Send) -> None:
    # Its time is that of Retry-After; it is renewed until the script has run into it.
    held = lock("order:7", ttl=1, renew=True).acquire()

    def free(**kwargs: Any) -> None:
        held.release()

    lock_refused.connect(free)
    answer = send({"amount": 10})
    assert not held.locked
    assert answer == {"status": 201, "replayed": "false", "body": {"payments": 1}}
    assert paid == [10]


@pytest.mark.slow
def test_a_request_whose_answer_was_lost_is_sent_again_with_its_key(send: Send) -> None:
    answer = send({"amount": 10}, lost=1)
    assert answer == {"status": 201, "replayed": "true", "body": {"payments": 1}}
    assert paid == [10]


def test_a_refusal_that_is_not_retryable_is_the_answer(send: Send) -> None:
    assert send({"amount": 10}, **{"Idempotency-Key": "k"})["status"] == 201
    answer = send({"amount": 11}, **{"Idempotency-Key": "k"})
    assert (answer["status"], answer["body"]["code"]) == (422, "idempotency-key-reused")
    assert paid == [10]
