"""Every block of Python in the documents runs, and every command in them has its arguments.

Pages whose examples need more than this file gives them have tests of their own.
"""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands, load_command_class
from django.core.management.base import CommandError

from testproject.shop.models import Order
from tests.test_documents import DOCUMENTS, ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(
    r"(?:^ {4,}(?:[\w-]+ )*?(?:python )?|`(?:python )?)manage\.py ([^`\n]+)", re.MULTILINE
)
MODULE = re.compile(r"python -m ([\w.]+)")

TESTED = {
    "README.md": "tests/test_readme.py",
    "docs/explanation/why-not-setnx.md": "tests/scenarios/test_historical_locks.py",
    "docs/how-to/deploy.md": "tests/test_deploy_page.py",
    "docs/how-to/fencing.md": "tests/app/test_fenced.py",
    "docs/how-to/lock.md": "tests/app/test_lock_pages.py",
    "docs/how-to/migrate.md": "tests/scenarios/test_migrate_page.py",
    "docs/how-to/observe.md": "tests/contrib/test_observe_page.py",
    "docs/how-to/permits.md": "tests/test_permits_page.py",
    "docs/how-to/testing.md": "tests/testing/test_testing_page.py",
    "docs/how-to/views.md": "tests/app/test_lock_pages.py",
    "docs/how-to/webhooks.md": "tests/idempotency/test_webhooks_page.py",
    "docs/contributing/write-a-store.md": "tests/test_write_a_store_page.py",
    "docs/tutorial/shop.md": "tests/test_tutorial.py",
}
NOT_RUN = {
    "docs/contributing/interrupts.md": "a loop without an end, whose byte code the page explains",
}
OF_OTHERS = {"pglock"}  # commands of packages that a page compares with this one
PAGES = {str(page.relative_to(ROOT)): BLOCK.findall(page.read_text()) for page in DOCUMENTS}

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
        if name in OF_OTHERS:
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
