"""The connections of a survey are closed, also of a master that answers too late."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from redlock_django.engine.inspection.queries import ListHeld
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.wire.servers import survey as survey_module
from redlock_django.wire.servers.address import Address
from redlock_django.wire.servers.survey import Survey


def test_a_connection_whose_answer_comes_too_late_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    goes_on, closed = threading.Event(), threading.Event()

    class Late:
        def __init__(self, *args: Any) -> None:
            pass

        def run(self, query: Any) -> None:
            goes_on.wait(60)

        def close(self) -> None:
            closed.set()

    monkeypatch.setattr(survey_module, "Probe", Late)
    deployment = Deployment(names=("a",))
    survey = Survey([Address.from_url("redis://a/0")], deployment, 60.0)
    query = ListHeld(deployment=deployment, most=1)
    assert survey.ask(lambda send: send(query), within=0.0) == {}
    goes_on.set()  # the caller waits for it no more
    assert closed.wait(60), "its thread has left the connection open"
    survey.close()
