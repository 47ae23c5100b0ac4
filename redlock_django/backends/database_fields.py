"""The column for the name of a resource."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

from redlock_django.backends.database_dialects import text

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    CharField = models.CharField[str, str]
else:
    CharField = models.CharField


class ResourceField(CharField):
    """The name of a resource, of which every character counts.

    Collations of MySQL take "a", "A" and "a " for equal, so the column is binary there.
    """

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        """Return the type of the column."""
        if connection.vendor == "mysql":
            return f"varbinary({4 * (self.max_length or 0)})"
        return super().db_type(connection)

    def from_db_value(self, value: str | bytes, *_: Any) -> str:
        """Return a value of the database as a string."""
        return text(value)
