"""The examples of docs/how-to/lock.md and docs/how-to/views.md work as written."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.admin import site
from django.test import RequestFactory
from pytest_django import Settings

import redlock_django
from redlock_django import exceptions, lock
from redlock_django.conf.settings import load
from redlock_django.exceptions import RedlockError, ResourceLocked
from redlock_django.testing import assert_not_locked, held_elsewhere
from redlock_django.web.answers import problem_of, problem_type
from testproject.shop.models import Order
from tests.api_page import PAGE, page, public_objects
from tests.test_documents import ROOT

LOCK, VIEWS, ERRORS = (
    (ROOT / page).read_text()
    for page in ("docs/how-to/lock.md", "docs/how-to/views.md", "docs/reference/errors.md")
)

pytestmark = pytest.mark.usefixtures("redlock_memory")


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_the_sync_examples_of_the_page_run() -> None:
    for block in blocks(LOCK):
        if "async" not in block:
            exec(block, {"lock": lock})
    for name in ("order:42", "user:7", "nightly"):
        assert_not_locked(name)


async def test_the_async_example_of_the_page_runs() -> None:
    [block] = [block for block in blocks(LOCK) if "async" in block]
    names: dict[str, Any] = {"lock": lock}
    exec("async def example():\n" + textwrap.indent(block, "    "), names)
    await names["example"]()
    for name in ("order:42", "nightly"):
        assert_not_locked(name)


@pytest.fixture
def names(settings: Settings) -> dict[str, Any]:
    """The names of views.md, whose blocks follow each other in one module."""
    module: dict[str, Any] = {"REDLOCK": settings.REDLOCK}
    for block in blocks(VIEWS):
        exec(block, module)
    return module


def test_the_views_of_the_page_are_locked(names: dict[str, Any]) -> None:
    request = RequestFactory().post("/")
    request.user = SimpleNamespace(is_authenticated=True)  # type: ignore[assignment]
    with held_elsewhere("order:7"):
        assert names["Pay"].as_view()(request, pk=7).status_code == 423
        assert names["Ship"].as_view()(request, pk=7).status_code == 423
        assert names["pay"](request, pk=7).status_code == 423


async def test_the_async_view_of_the_page_runs(names: dict[str, Any]) -> None:
    assert await names["ship"](RequestFactory().post("/"), pk=7) is None


def test_the_rules_of_the_page_are_valid(names: dict[str, Any]) -> None:
    assert len(load("default").rules) == len(names["REDLOCK"]["default"]["RULES"]) == 2


def test_the_admin_of_the_page_is_locked(names: dict[str, Any]) -> None:
    orders = names["OrderAdmin"](Order, site)
    with held_elsewhere("order:7"):
        answer = orders.change_view(RequestFactory().post("/"), object_id="7")
    assert answer.status_code == 423


def test_every_option_is_named(names: dict[str, Any]) -> None:
    options = set(inspect.signature(names["lock_resource"]).parameters) - {"templates"}
    assert {name for name in options if not re.search(rf"`{name}[=`]", VIEWS)} == set()


def test_every_error_of_a_lock_is_listed_with_its_answer() -> None:
    rows = {
        name: (status.split(" ")[0], code.strip(" `"))
        for name, status, code in re.findall(
            r"^\| [^|]+ \| `(\w+)` \| ([^|]+) \|([^|]*)\|$", ERRORS, re.MULTILINE
        )
    }
    known = {
        name for name in exceptions.__all__ if issubclass(getattr(exceptions, name), RedlockError)
    }
    bases = {"RedlockError", "NotAcquired", "IdempotencyRefused"}
    assert rows.keys() - {"InvalidRedlock"} == known - bases
    for name in rows.keys() - {"InvalidRedlock"}:
        error = getattr(exceptions, name)("x")
        answer = problem_of(error) if problem_type(error) else {"status": 500, "code": ""}
        assert rows[name] == (str(answer["status"]), answer["code"]), name


def test_the_example_of_an_answer_is_a_real_answer() -> None:
    [example] = re.findall(r"```json\n(.*?)```", ERRORS, re.DOTALL)
    assert json.loads(example) == problem_of(ResourceLocked("held"))


def test_the_api_has_every_public_name() -> None:
    shown = {name for _, name, _ in public_objects()}
    assert {f"redlock_django.{name}" for name in redlock_django.__all__} <= {
        *shown, *(name.replace(".exceptions.", ".") for name in shown),
    }  # fmt: skip


def test_the_api_is_that_of_the_signatures_and_docstrings() -> None:
    assert PAGE.read_text() == page(), (
        "write the page again: uv run python -m tests.api_page > docs/reference/api.md"
    )
