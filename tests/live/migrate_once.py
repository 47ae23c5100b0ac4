"""A container that starts: it runs `migrate_once` of docs/how-to/leader.md.

The migration ends with CREATE INDEX CONCURRENTLY, which waits for the snapshots of other clients.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import django

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/leader.md"
INDEX = "CREATE INDEX CONCURRENTLY IF NOT EXISTS of_a_test ON shop_order (number)"


def main() -> None:
    django.setup()
    from django.core.management import call_command
    from django.db import connection

    [code] = re.findall(r"```python\n(import time.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)

    def migrate(name: str, **options: Any) -> None:
        call_command(name, **options)
        with connection.cursor() as cursor:
            cursor.execute(INDEX)

    names["call_command"] = migrate
    names["migrate_once"](wait=60, verbosity=1)


if __name__ == "__main__":
    main()
