"""IDEMPOTENCY in the settings: its values, and the messages for mistakes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import run_checks
from django.http import HttpRequest, HttpResponse

from redlock_django import idempotent
from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.settings import DEFAULTS, IdempotencySettings, settings_of
from tests.app.conftest import MEMORY
from tests.idempotency.conftest import Site, make_order

Configure = Callable[..., IdempotencySettings]


@pytest.fixture
def configure(settings: Any, memory: None) -> Configure:
    def read(**idempotency: Any) -> IdempotencySettings:
        settings.REDLOCK = {"default": {"BACKEND": MEMORY, "IDEMPOTENCY": idempotency}}
        return settings_of("default")

    return read


def test_every_key_is_an_option(configure: Configure) -> None:
    options = configure()
    assert {key.lower() for key in DEFAULTS} == set(vars(options))
    assert (options.database, options.retention, options.required) == ("default", 86400, False)
    assert options.methods == {"POST", "PATCH"}


def test_settings_are_read_again_when_they_change(configure: Configure) -> None:
    assert configure(RETENTION=timedelta(hours=1)).retention == 3600
    assert configure(RETENTION=5).retention == 5
    assert settings_of("default") is settings_of("default")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"RETENTON": 1}, "unknown key 'RETENTON'.*RETENTION"),
        ({"DATABASE": "other"}, "DATABASE 'other' is not an alias of DATABASES"),
        ({"RETENTION": "1d"}, "RETENTION must be a number of seconds"),
        ({"RETENTION": 0}, "RETENTION must be at least 1"),
        ({"RETENTION": 1e12}, r"RETENTION must be at most 3153600000 s \(36500 days\)"),
        ({"WAIT": 1e10}, r"WAIT must be at most 604800 s \(7 days\)"),
        ({"HEADER": ""}, "HEADER must be a string"),
        ({"FIELD": None}, "FIELD must be a string"),
        ({"METHODS": "POST"}, "METHODS must be a list"),
        ({"METHODS": ["GET"]}, "METHODS may contain"),
        ({"REQUIRED": "yes"}, "REQUIRED must be True or False"),
        ({"MAX_WAITERS": 4}, "MAX_WAITERS is a key of the alias"),
        ({"WAIT": -1}, "WAIT must be at least 0"),
        ({"MAX_RESPONSE_BYTES": "1M"}, "MAX_RESPONSE_BYTES must be a number of bytes"),
        ({"TENANT": "no.such.thing"}, "TENANT 'no.such.thing' cannot be imported"),
        ({"TENANT": 7}, "TENANT must be a callable"),
    ],
)
def test_a_mistake_names_the_alias_and_the_key(
    configure: Configure, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRedlock, match=message) as caught:
        configure(**wrong)
    assert str(caught.value).startswith("REDLOCK['default']: IDEMPOTENCY: ")
    assert [error.id for error in run_checks(tags=["redlock"])] == ["redlock_django.E001"]


class Router:
    """Sends the shop to a database of its own."""

    def db_for_write(self, model: Any, **_: Any) -> str | None:
        return "shop" if model._meta.app_label == "shop" else None


@pytest.mark.attack
def test_a_database_that_the_models_are_not_written_to_is_warned_of(
    configure: Configure, settings: Any
) -> None:
    configure(DATABASE="default")
    assert run_checks(tags=["redlock"]) == []
    settings.DATABASE_ROUTERS = [f"{__name__}.Router"]
    (warning,) = run_checks(tags=["redlock"])
    assert warning.id == "redlock_django.W015"
    assert "records are in DATABASE 'default', but shop." in warning.msg
    assert "is written to 'shop'" in warning.msg


def test_an_alias_that_is_not_there(configure: Configure) -> None:
    configure()
    with pytest.raises(InvalidRedlock, match="no alias 'payments'"):
        settings_of("payments")


@pytest.mark.django_db(transaction=True)
def test_header_field_and_methods_can_be_others(site: Site) -> None:
    site.serve(
        idempotent(make_order),
        configured={"HEADER": "X-Once", "FIELD": "once", "METHODS": ["DELETE", "POST"]},
    )
    first, second = (site.client.delete("/", headers={"X-Once": "k"}) for _ in range(2))
    assert (first["X-Once"], second["Idempotent-Replayed"]) == ("k", "true")
    first, second = (site.client.post("/", {"once": "f"}) for _ in range(2))
    assert second.content == first.content
    assert "X-Once" not in second
    assert site.post()["Content-Type"]  # a different header is not a key


@pytest.mark.django_db(transaction=True)
def test_a_field_of_a_form_is_a_key(site: Site) -> None:
    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        return make_order(request)

    site.serve(idempotent(required=True)(view))
    answers = [site.client.post("/", {"idempotency_key": key}) for key in ("a", "a", "b")]
    assert [answer["Idempotent-Replayed"] for answer in answers] == ["false", "true", "false"]
    # Two forms in one page: the first key counts.
    twice = [site.client.post("/", {"idempotency_key": ["c", other]}) for other in "de"]
    assert [answer["Idempotent-Replayed"] for answer in twice] == ["false", "true"]
    assert site.client.post("/", {"idempotency_key": ""}).status_code == 400
    assert site.client.post("/", {"a": 1}).json()["code"] == "idempotency-key-missing"
    # A header takes precedence over it.
    both = site.client.post("/", {"idempotency_key": "a"}, headers={"Idempotency-Key": "new"})
    assert both["Idempotent-Replayed"] == "false"
