"""Every block of Python in the documents runs, and every command in them has its arguments.

Pages whose examples need servers, a table or a process of their own have a file of tests.
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.core.checks import run_checks
from django.core.management import get_commands, load_command_class
from django.core.management.base import CommandError
from django.test import RequestFactory
from pytest_django import Settings

from redlock_django import exceptions, lock
from redlock_django.conf.settings import load
from redlock_django.exceptions import LimitReached
from redlock_django.fenced import Fenced
from redlock_django.testing import assert_not_locked, held_elsewhere
from testproject.shop.models import Order
from tests.pages import ROOT, Page
from tests.test_documents import COMMANDS, DOCUMENTS

COMMAND = re.compile(
    r"(?:^ {4,}(?:[\w-]+ )*?(?:python )?|`(?:python )?)manage\.py ([^`\n]+)", re.MULTILINE
)
MODULE = re.compile(r"python -m ([\w.]+)")

TESTED = {
    "README.md": "tests/test_examples.py",
    "docs/how-to/deploy.md": "tests/test_deploy_page.py",
    "docs/how-to/fencing.md": "tests/app/test_fenced.py",
    "docs/how-to/migrate.md": "tests/scenarios/test_migrate_page.py",
    "docs/how-to/observe.md": "tests/contrib/test_observe_page.py",
    "docs/how-to/lock.md": "tests/test_examples.py",
    "docs/how-to/permits.md": "tests/test_examples.py",
    "docs/how-to/testing.md": "tests/testing/test_kit.py",
    "docs/how-to/views.md": "tests/test_examples.py",
    "docs/how-to/webhooks.md": "tests/idempotency/test_webhooks_page.py",
    "docs/contributing/write-a-store.md": "tests/test_write_a_store_page.py",
    "docs/tutorial/shop.md": "tests/test_tutorial.py",
}
NOT_RUN = {
    "docs/contributing/interrupts.md": "a loop without an end, whose byte code the page explains",
}
PAGES = {str(page.relative_to(ROOT)): Page(str(page)).blocks() for page in DOCUMENTS}

# What the examples use without importing it.
NAMES = """
import asyncio, os
from datetime import timedelta

import redlock_django.contrib.drf
from asgiref.sync import sync_to_async
from celery import Celery
from django import forms
from django.contrib.auth.decorators import login_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.core.management.base import BaseCommand
from django.core.wsgi import get_wsgi_application
from django.db import transaction
from django.http import JsonResponse
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from ninja import NinjaAPI
from redlock_django import (
    IdempotentMixin, ResourceLocked, hold, idempotent, lock, lock_resource, transaction_lock
)
from rest_framework.decorators import action
from rest_framework.response import Response
from rest_framework.viewsets import ModelViewSet
from testproject.shop.models import Order

api = NinjaAPI(urls_namespace="examples")
app = Celery()
task = app.task  # django.tasks, where Django has it, takes functions in modules only
REDLOCK = {"default": {}}
stripe_signature = lambda request, **_: True  # of the site
"""


def test_every_page_with_examples_has_a_test() -> None:
    for page, test in TESTED.items():
        assert PAGES[page]
        assert Path(page).name in (ROOT / test).read_text()
    assert all(PAGES[page] for page in NOT_RUN)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("redlock_memory")
@pytest.mark.parametrize(
    "page", [page for page, found in PAGES.items() if found and page not in {*TESTED, *NOT_RUN}]
)
def test_the_examples_of_a_page_run(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for password in ("REDIS_PASSWORD", "SENTINEL_PASSWORD", "ZOOKEEPER_PASSWORD"):
        monkeypatch.setenv(password, "of a test")
    Order.objects.create(pk=42, number="A-42", total=500)
    names: dict[str, Any] = {"__name__": "examples"}
    exec(NAMES, names)
    for block in PAGES[page]:
        is_member = re.match(r'"\w+":', block)  # of a dict that the page has shown before
        exec(f"{{{block}}}" if is_member else block, names)


def commands() -> list[tuple[str, str]]:
    """Return the commands of `manage.py` in the documents, each with the page that names it."""
    found = []
    for page in DOCUMENTS:
        for line in COMMAND.findall(page.read_text()):
            words = re.split(r"(?:^|\s)(?:&|;|\||#|\d?>)|; ", line)[0].strip()
            found.append((str(page.relative_to(ROOT)), words))
    return sorted(set(found))


def test_every_command_has_the_arguments_of_its_examples() -> None:
    refused = []
    for page, line in commands():
        name, *arguments = shlex.split(line.replace("--database NAME", "--database default"))
        if name in COMMANDS:
            continue
        command = load_command_class(get_commands()[name], name)
        try:
            if arguments:  # without any, the text may name the command only
                command.create_parser("manage.py", name).parse_args(arguments)
        except CommandError as error:
            refused.append(f"{page}: {line}: {error}")
    assert not refused


def test_every_command_can_be_pasted() -> None:
    """The shell does not look for manage.py in the folder of the site."""
    bare = re.compile(r"^ {4}manage\.py .*", re.MULTILINE)
    found = {page.name: bare.findall(page.read_text()) for page in DOCUMENTS}
    assert not any(found.values()), found


def test_every_module_that_is_run_exists() -> None:
    modules = {name for page in DOCUMENTS for name in MODULE.findall(page.read_text())}
    assert len(modules) > 5
    assert {name for name in modules if find_spec(name) is None} == set()


# README, locks, views and permits: what the examples do.

in_memory = pytest.mark.usefixtures("redlock_memory")
PERMITS = Page("docs/how-to/permits.md")
factory = RequestFactory()


@pytest.mark.django_db  # the checks of models ask what the database can do
def test_the_checks_of_the_demo_find_nothing() -> None:
    assert run_checks() == []


@in_memory
def test_the_examples_of_the_readme_run() -> None:
    names = Page("README.md").section("Examples").run()
    with held_elsewhere("order:7"):
        assert names["pay"](factory.post("/"), pk=7).status_code == 423


@in_memory
def test_the_sync_examples_of_lock_run() -> None:
    for block in PAGES["docs/how-to/lock.md"]:
        if "async" not in block:
            exec(block, {"lock": lock})
    for name in ("order:42", "user:7", "nightly"):
        assert_not_locked(name)


@in_memory
async def test_the_async_example_of_lock_runs() -> None:
    [block] = [block for block in PAGES["docs/how-to/lock.md"] if "async" in block]
    names: dict[str, Any] = {"lock": lock}
    exec("async def example():\n" + textwrap.indent(block, "    "), names)
    await names["example"]()
    for name in ("order:42", "nightly"):
        assert_not_locked(name)


@pytest.fixture
def views(settings: Settings, redlock_memory: object) -> dict[str, Any]:
    return Page("docs/how-to/views.md").run(REDLOCK=settings.REDLOCK)


def test_the_views_of_the_page_are_locked(views: dict[str, Any]) -> None:
    request = factory.post("/")
    request.user = SimpleNamespace(is_authenticated=True)  # type: ignore[assignment]
    orders = views["OrderAdmin"](Order, site)
    with held_elsewhere("order:7"):
        for view in (views["pay"], views["Pay"].as_view(), views["Ship"].as_view()):
            assert view(request, pk=7).status_code == 423
        assert orders.change_view(request, object_id="7").status_code == 423
    assert async_to_sync(views["ship"])(request, pk=7) is None
    assert len(load("default").rules) == len(views["REDLOCK"]["default"]["RULES"]) == 2


@pytest.fixture
def permits(redlock_memory: object) -> dict[str, Any]:
    return PERMITS.run()


def test_three_hold_the_first_name_of_the_page(permits: dict[str, Any]) -> None:
    held = permits["held"]
    assert held.limit == 3
    with held_elsewhere("export", limit=2), held:
        assert held.slot in {0, 1, 2}
    with held_elsewhere("export", limit=3), pytest.raises(LimitReached):
        lock("export", limit=3).acquire()


@pytest.mark.parametrize(("view", "status"), [("report", 423), ("make_report", 429)])
@pytest.mark.django_db
def test_a_limit_for_each_user(permits: dict[str, Any], view: str, status: int) -> None:
    request = factory.get("/", headers={"Accept": "application/json"})
    request.user = User(pk=7)
    with held_elsewhere("report:7", limit=2):
        answer = permits[view](request)
    assert answer.status_code == status
    assert json.loads(answer.content)["code"] == "limit-reached"
    assert int(answer["Retry-After"]) > 0
    with held_elsewhere("report:7"):
        assert permits[view](request) is None


def test_five_calls_of_a_partner(permits: dict[str, Any]) -> None:
    assert permits["ask_partner"]("why?") is None
    permits["order_at_partner"](1)
    with held_elsewhere("partner-api", limit=5):
        assert permits["ask_partner"]("why?") is None  # skipped


@pytest.mark.django_db
def test_each_slot_has_its_own_share_of_the_rows(
    permits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []
    monkeypatch.setattr(Order, "save", lambda self: saved.append(self.pk))
    orders = Order.objects.bulk_create(Order(number=str(n), total=1) for n in range(10))
    workers = [lock("reminders", limit=4) for _ in range(4)]
    for worker in workers:
        worker.acquire().disown()
    for worker in workers:
        slot = worker.slot
        worker.release()
        permits["work"](Order.objects.all(), wait=0)  # takes the share of a worker that ended
        assert {pk % 4 for pk in saved[-2:]} == {slot}
        worker.acquire().disown()
    assert sorted(saved) == sorted(order.pk for order in orders)


def held_twice(limit: int = 2, *, reentrant: bool = False) -> None:
    with lock("a", limit=2), lock("a", limit=limit, reentrant=reentrant):
        pass


@in_memory
@pytest.mark.parametrize(
    ("write", "error"),
    [
        (lambda: lock("a", limit=0), ValueError),
        (lambda: lock("a", "b", limit=2), exceptions.InvalidRedlock),
        (lambda: held_twice(limit=3, reentrant=True), exceptions.AlreadyHeld),
        (lambda: held_twice(), exceptions.AlreadyHeld),
        (lambda: Fenced(ContentType.objects.all(), lock("a", limit=2)), ValueError),
        (lambda: lock("a" * 508, limit=2), exceptions.BadName),
    ],
)
def test_what_the_page_on_permits_names_as_refused_raises(
    write: Callable[[], Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        write()
