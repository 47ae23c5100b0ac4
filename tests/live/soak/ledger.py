"""The tables of the registers, and the log of writes that the database keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.live.soak.history import Write

if TYPE_CHECKING:
    import psycopg

# The database writes the log in the order in which the row really changed: a trigger runs while its
# row is locked, and a rollback removes its entry from the log, too.
_SCHEMA = """
DROP TABLE IF EXISTS soak_register, soak_write;
CREATE TABLE soak_register (
    name text PRIMARY KEY, value int NOT NULL DEFAULT 0, entry text NOT NULL DEFAULT '',
    after text NOT NULL DEFAULT '', fence bigint NOT NULL DEFAULT 0,
    fence_owner text NOT NULL DEFAULT ''
);
CREATE TABLE soak_write (
    position bigserial PRIMARY KEY, name text, entry text, after text, stood text, fence bigint
);
CREATE OR REPLACE FUNCTION soak_saw() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO soak_write (name, entry, after, stood, fence) VALUES (
        NEW.name, CASE WHEN NEW.entry = OLD.entry THEN '' ELSE NEW.entry END,
        NEW.after, OLD.entry, NEW.fence
    );
    RETURN NULL;
END $$;
CREATE TRIGGER soak_saw AFTER UPDATE ON soak_register FOR EACH ROW EXECUTE FUNCTION soak_saw();
"""


def connect(database: dict[str, Any]) -> psycopg.Connection[tuple[Any, ...]]:
    """Return a connection to the database of an entry of DATABASES."""
    import psycopg

    where = {"host": "HOST", "port": "PORT", "user": "USER", "dbname": "NAME"}
    return psycopg.connect(
        "", **{ours: database[theirs] for ours, theirs in where.items()}, autocommit=True
    )


def make(database: dict[str, Any], names: list[str]) -> None:
    """Create empty registers with these names, and delete all others."""
    with connect(database) as connection:
        connection.execute(_SCHEMA.encode())
        for name in names:
            connection.execute("INSERT INTO soak_register (name) VALUES (%s)", [name])


def seen(database: dict[str, Any], names: list[str]) -> tuple[list[Write], int]:
    """Return every write to these registers, in order, and the sum of their values."""
    with connect(database) as connection:
        rows = connection.execute(
            "SELECT name, entry, after, stood, fence FROM soak_write WHERE name = ANY(%s) "
            "ORDER BY position",
            [names],
        ).fetchall()
        total = connection.execute(
            "SELECT sum(value) FROM soak_register WHERE name = ANY(%s)", [names]
        ).fetchone()
    assert total is not None
    return [Write(*row) for row in rows], int(total[0])
