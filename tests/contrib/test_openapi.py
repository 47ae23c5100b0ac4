"""Schemas of drf-spectacular and django-ninja say what locked and idempotent operations answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any, NamedTuple

import jsonschema
import pytest
from django.core.cache import caches
from django.test import Client
from django.urls import path
from drf_spectacular.validation import validate_schema
from pytest_django import Settings

from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.idempotency.key import BARE_KEY
from redlock_django.locking.services import locks
from redlock_django.testing import held_elsewhere
from tests.app.conftest import MEMORY
from tests.contrib.openapi_apis import (
    HOOK,
    during,
    ninja_api,
    ninja_schema,
    rest_framework_schema,
    rest_framework_urls,
)

pytestmark = pytest.mark.django_db
APIS = {name: ninja_api(name, is_async=name == "ninja-async") for name in ("ninja", "ninja-async")}


class Site(NamedTuple):
    """A site with the operations, and the function that returns its schema."""

    client: Client
    schema: Callable[[], Any]

    def post(self, name: str, key: str | None = None, *, pk: int = 7, **options: Any) -> Any:
        """Send a request to an operation; it may have a key."""
        headers = {"Idempotency-Key": key} if key is not None else {}
        url = f"/orders/{pk}/{name}/{options.pop('query', '')}"
        options.setdefault("content_type", "application/json")
        return self.client.post(url, options.pop("data", {}), headers=headers, **options)

    def operation(self, name: str, method: str = "post") -> Any:
        """Return what the schema says of an operation."""
        paths = self.schema()["paths"]
        [found] = [paths[one] for one in paths if one.endswith(f"/{name}/")]
        return found[method]


@pytest.fixture(params=["drf", "ninja", "ninja-async"])
def site(
    request: pytest.FixtureRequest,
    urls: Callable[..., None],
    settings: Settings,
    plain: None,
) -> Iterator[Site]:
    """The operations in one framework."""
    settings.REDLOCK = {"default": {"BACKEND": MEMORY}}
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    client = Client(raise_request_exception=False)
    if request.param == "drf":
        urls(*rest_framework_urls())
        yield Site(client, rest_framework_schema)
    else:
        api = APIS[request.param]
        urls(path("", api.urls))
        yield Site(client, lambda: ninja_schema(api))
    during.clear()
    caches["default"].clear()


def codes(schema: Any, operation: Any, status: int) -> set[str]:
    """Return the codes that an operation is said to answer with a status."""
    response = operation["responses"][str(status)]
    return set(problem_schema(schema, response)["properties"]["code"]["enum"])


def problem_schema(schema: Any, response: Any) -> Any:
    reference = response["content"]["application/problem+json"]["schema"]["$ref"]
    return schema["components"]["schemas"][reference.rpartition("/")[2]]


class Answers:
    """Live answers of an operation, each of which must be as its schema says."""

    def __init__(self, site: Site, name: str) -> None:
        self.schema = site.schema()
        self.operation = site.operation(name)
        self.seen: dict[int, set[str]] = {}

    def check(self, answer: Any) -> None:
        """Compare the answer to the schema, and note its status and code."""
        response = self.operation["responses"][str(answer.status_code)]
        assert answer["Content-Type"].partition(";")[0] in response["content"]
        for name in ("Idempotent-Replayed", "Retry-After"):
            if name in answer:
                assert name in response["headers"], (answer.status_code, name)
        if answer["Content-Type"] != "application/problem+json":
            assert answer.status_code in (200, 201)
            return
        jsonschema.validate(answer.json(), problem_schema(self.schema, response))
        assert f"`{answer.json()['code']}`" in response["description"] or answer.status_code == 413
        self.seen.setdefault(answer.status_code, set()).add(answer.json()["code"])


def test_each_documented_status_is_that_of_a_live_answer(site: Site) -> None:
    answers = Answers(site, "pay")
    first, again = site.post("pay", "k-1"), site.post("pay", "k-1")
    assert [one["Idempotent-Replayed"] for one in (first, again)] == ["false", "true"]
    for answer in (first, again):
        assert answer.status_code == 201
        answers.check(answer)
    answers.check(site.post("pay"))
    answers.check(site.post("pay", "k 2"))
    answers.check(site.post("pay", "k-1", pk=8))
    answers.check(site.post("pay", "k-2", data={"a": "b" * 2000}))
    with held_elsewhere("order:7"):
        answers.check(site.post("pay", "k-3"))
    site.post("pay", "k-5", query="?stream").close()
    answers.check(site.post("pay", "k-5", query="?stream"))
    stop_masters()
    answers.check(site.post("pay", "k-8"))
    assert answers.seen == {
        400: {"idempotency-key-missing", "idempotency-key-invalid"},
        409: {"idempotency-result-unavailable"},
        413: {"idempotency-body-too-large"},
        422: {"idempotency-key-reused"},
        423: {"resource-locked"},
        503: {"idempotency-unavailable"},
    }
    assert {int(status) for status in answers.operation["responses"]} == {201, *answers.seen}


def stop_masters() -> None:
    backend = locks["default"].backend
    assert isinstance(backend, MemoryBackend)
    for index in range(len(backend.masters)):
        backend.refuse(index)


@pytest.mark.parametrize("site", ["ninja-async"], indirect=True)
def test_a_request_in_flight_is_answered_with_the_status_of_its_schema(site: Site) -> None:
    answers = Answers(site, "optional")
    during.append(lambda: answers.check(site.post("optional", "k-1")))
    answers.check(site.post("optional", "k-1"))
    assert answers.seen == {409: {"idempotency-key-in-flight"}}
    assert codes(answers.schema, answers.operation, 409) >= {"idempotency-outcome-uncertain"}


def test_a_limit_and_a_status_of_its_own(site: Site) -> None:
    answers = Answers(site, "export")
    with held_elsewhere("export", limit=2):
        answers.check(site.post("export"))
    assert answers.seen == {429: {"limit-reached"}}
    stop_masters()
    answers.check(site.post("export"))
    assert answers.seen[503] == {"lock-unavailable"}
    half: Any = {"wsgi.input": BytesIO(b"{"), "CONTENT_LENGTH": "2"}
    answers.check(site.post("export", data=b"{}", **half))
    assert answers.seen[400] == {"incomplete-body"}
    responses = answers.operation["responses"]
    assert {*responses} == {"200", "400", "429", "503"}
    assert responses["429"]["description"] == "`limit-reached`: Limit is reached"
    assert [*responses["429"]["headers"]] == ["Retry-After"]


def test_what_is_neither_locked_nor_idempotent_is_left_alone(site: Site) -> None:
    assert {*site.operation("export", "put")["responses"]} == {"200"}
    paths = site.schema()["paths"]
    [show] = [item["get"] for item in paths.values() if "get" in item]
    assert {*show["responses"]} == {"200"}
    assert all(one["in"] != "header" for one in show["parameters"])


def header_parameters(operation: Any) -> list[Any]:
    return [one for one in operation["parameters"] if one["in"] == "header"]


def test_the_header_is_described(site: Site, settings: Settings) -> None:
    [key] = header_parameters(site.operation("pay"))
    assert (key["name"], key["required"]) == ("Idempotency-Key", True)
    assert (key["schema"]["minLength"], key["schema"]["maxLength"]) == (1, 255)
    [key] = header_parameters(site.operation("optional"))
    assert key["required"] is False
    assert header_parameters(site.operation("event")) == []
    assert header_parameters(site.operation("export")) == []
    configured = {"HEADER": "X-Request-Id"}
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "IDEMPOTENCY": configured}}
    [key] = header_parameters(site.operation("pay"))
    assert (key["name"], key["schema"]["pattern"]) == ("X-Request-Id", f"^{BARE_KEY}$")


def test_an_event_whose_id_is_in_the_body_is_answered_as_described(site: Site) -> None:
    answers = Answers(site, "event")
    answers.check(site.post("event", data={"id": "e-1"}))
    answers.check(site.post("event", data={"id": "e-1"}))
    answers.check(site.post("event"))
    answers.check(site.post("event", data={"id": "e-1"}, pk=8))
    assert answers.seen == {400: {"idempotency-key-missing"}, 422: {"idempotency-key-reused"}}
    assert "429" not in answers.operation["responses"]


def test_what_the_site_describes_itself_is_kept(site: Site) -> None:
    response = site.operation("pay")["responses"]["413"]
    assert {*response["content"]} == {"application/json", "application/problem+json"}
    assert "TooLarge" in str(response["content"]["application/json"])
    assert "`" not in response["description"]


def test_the_schema_is_valid(site: Site) -> None:
    schema = site.schema()
    validate: Any = validate_schema
    validate({**schema, "openapi": "3.0.3"})
    assert schema == site.schema()


@pytest.mark.parametrize("name", APIS)
def test_django_ninja_serves_the_completed_schema(urls: Callable[..., None], name: str) -> None:
    urls(path("api/", APIS[name].urls))
    served = Client().get("/api/openapi.json").json()
    assert served == ninja_schema(APIS[name])
    assert "423" in served["paths"]["/api/orders/{pk}/pay/"]["post"]["responses"]


def test_the_hook_may_come_before_that_of_enumerations(urls: Callable[..., None]) -> None:
    urls(*rest_framework_urls())
    hooks = [HOOK, "drf_spectacular.hooks.postprocess_schema_enums"]
    schema = rest_framework_schema(POSTPROCESSING_HOOKS=hooks)
    validate: Any = validate_schema
    validate(schema)
    assert "423" in schema["paths"]["/orders/{id}/pay/"]["post"]["responses"]
    twice = rest_framework_schema(POSTPROCESSING_HOOKS=[HOOK, HOOK])
    assert twice == rest_framework_schema(POSTPROCESSING_HOOKS=[HOOK])
