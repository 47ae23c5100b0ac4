"""System checks `redlock_django.E0xx` and `W0xx`; docs/reference/checks.md lists them.

Their tag is `redlock`. Checks that connect to the masters have the tag `redlock_masters` and run
only with `check --deploy --database ALIAS`, as Django's own database checks do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import Any

from django.core.checks import CheckMessage, Tags, register

TAG = "redlock"
MASTERS_TAG = "redlock_masters"


def register_checks() -> None:
    """Register all checks. The module of a check is imported when the check first runs.

    `django.setup()` stays fast that way: the checks import the whole app.
    """
    for check in (
        "tables.check_routers",
        "idempotency.check_idempotency",
        "settings.check_settings",
        "views.check_views",
    ):
        register(_imported_later(check), TAG)
    register(_imported_later("deployment.check_deployment"), TAG, deploy=True)
    register(_imported_later("masters.check_masters"), MASTERS_TAG, Tags.database, deploy=True)
    register(_imported_later("tables.check_tables"), Tags.database, deploy=True)


@cache  # Django sets up apps again in tests that change INSTALLED_APPS; a check is one function
def _imported_later(path: str) -> Callable[..., Iterable[CheckMessage]]:
    module, _, name = path.partition(".")

    def check(**options: Any) -> Iterable[CheckMessage]:
        function = getattr(import_module(f"{__name__}.{module}"), name)
        messages: Iterable[CheckMessage] = function(**options)
        return messages

    return check
