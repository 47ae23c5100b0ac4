"""Run every mutant, and print each with the failure that detects it."""

from __future__ import annotations

import logging
import os
import sys

import django

from tests.engine.mutants import all_mutants


def main() -> int:
    """Run every mutant from the command line."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    logging.disable()  # masters fail here all the time
    survivors = 0
    for name, mutant in all_mutants().items():
        mutant.test(*mutant.arguments)
        failure = mutant.failure()
        survivors += not failure
        sys.stdout.write(f"{name:60} {failure[:60] or 'SURVIVES'}\n")
    sys.stdout.write(f"{len(all_mutants())} mutants, {survivors} survive\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
