"""Databases of tests: new ones on a server, and aliases that lead to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pytest
from django.db import connections
from django.db.models import Model


@contextmanager
def database_alias(
    alias: str, entry: dict[str, Any], *, tables: Sequence[type[Model]] = ()
) -> Iterator[None]:
    """Add an alias to DATABASES in the block, without ATOMIC_REQUESTS; it has these tables."""
    whole = connections.configure_settings({"default": {}, alias: dict(entry)})
    connections.settings[alias] = whole[alias]
    try:
        if tables:
            with connections[alias].schema_editor() as editor:
                for table in tables:
                    editor.create_model(table)
        yield
        if tables:
            with connections[alias].schema_editor() as editor:
                for table in reversed(tables):
                    editor.delete_model(table)
    finally:
        connections[alias].close()
        del connections[alias], connections.settings[alias]


@contextmanager
def new_database(entry: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Create a database on the server of an entry for DATABASES; yield its entry, and drop it."""
    server: dict[str, Any] = {key: entry[key.upper()] for key in ("host", "user", "password")}
    server["port"] = int(entry["PORT"])
    if is_postgres := entry["ENGINE"].endswith("postgresql"):
        import psycopg

        connected: Any = psycopg.connect(**server, dbname="postgres", autocommit=True)
    else:
        connected = pytest.importorskip("pymysql").connect(**server, autocommit=True)
    with closing(connected):
        connected.cursor().execute(f"CREATE DATABASE {name}")
        yield {**entry, "NAME": name}
        force = " WITH (FORCE)" if is_postgres else ""
        connected.cursor().execute(f"DROP DATABASE {name}{force}")
