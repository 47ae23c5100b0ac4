#!/usr/bin/env python
"""Django's command line for the test project."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run a management command against `testproject.settings`."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
