"""A site that forgot `manage.py migrate`: the log, the answer with DEBUG, and the system check."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection
from pytest_django import Settings

from redlock_django import idempotent
from redlock_django.models import IdempotencyRecord
from tests.app.checking import found
from tests.idempotency.conftest import Site, make_order, orders

pytestmark = pytest.mark.django_db(transaction=True)
COMMAND = "manage.py migrate --database default"
RECORDS = IdempotencyRecord._meta.db_table


@contextmanager
def renamed(what: str, name: str) -> Iterator[None]:
    """Rename a table, or a column of one ("table.column"), during the block."""
    table, _, column = what.partition(".")
    rename = "RENAME COLUMN {} TO {}" if column else "RENAME TO {1}"
    after = table if column else name
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} {rename.format(column, name)}")
        try:
            yield
        finally:
            cursor.execute(f"ALTER TABLE {after} {rename.format(name, column or table)}")


@pytest.mark.parametrize("what", [RECORDS, f"{RECORDS}.path"])
@pytest.mark.parametrize("debug", [True, False])
def test_the_log_names_the_command_and_the_answer_does_with_debug(
    site: Site, settings: Settings, caplog: pytest.LogCaptureFixture, what: str, debug: bool
) -> None:
    settings.DEBUG = debug
    site.serve(idempotent(make_order))
    with renamed(what, "away"):
        response = site.post()
    assert response.status_code == 503
    problem = json.loads(response.content)
    assert problem["code"] == "idempotency-unavailable"
    assert (COMMAND in problem["detail"]) is debug
    assert problem["detail"].startswith("This site is not set up completely")
    assert "again" not in problem["detail"]
    assert problem["retryable"] is False
    assert "Retry-After" not in response
    assert COMMAND in caplog.text
    assert orders() == 0
    assert site.post().status_code == 201


@pytest.mark.parametrize(
    ("what", "lacks"),
    [
        (RECORDS, f"the table {RECORDS}"),
        (f"{RECORDS}.path", f"path in the table {RECORDS}"),
    ],
)
def test_a_check_of_the_database_names_the_command(memory: None, what: str, lacks: str) -> None:
    assert "E024" not in found(deploy=True, tag="database", databases=["default"])
    with renamed(what, "away"):
        text = found(deploy=True, tag="database", databases=["default"])["E024"]
        # Without the database, a check opens no connection; 'migrate' itself does not deploy.
        assert "E024" not in found(deploy=True)
        assert "E024" not in found(deploy=True, databases=["default"])  # as Django 6.1 does
        assert "E024" not in found(tag="database", databases=["default"])
    assert f"The database 'default' lacks {lacks}" in text
    assert COMMAND in text
