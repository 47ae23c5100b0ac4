#!/usr/bin/env python
"""Django's command line for the test project."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run a management command against `testproject.settings`."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    command = sys.argv[1:2]
    if command in (["runserver"], ["demo"]):
        # On a developer's machine: error pages, static files and a user for the admin.
        os.environ.setdefault("SHOP_DEBUG", "1")
    from django.core.management import execute_from_command_line

    if command == ["runserver"] and "RUN_MAIN" not in os.environ:  # once, not after each reload
        execute_from_command_line([sys.argv[0], "migrate", "--verbosity=0"])
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
