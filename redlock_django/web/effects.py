"""The effects of a view that met a lock error: none, undone, or unknown.

The answer to the error says "Nothing was changed" and `retryable` only if that is certain.
"""

from __future__ import annotations

from typing import Any

from django.db import connections

from redlock_django.exceptions import LockLost, ResourceLocked, StoreUnavailable

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


def judge_effects(error: BaseException, request: Any, *, undone: bool) -> None:
    """Note on a lock error whether its view may have changed something; the first note counts.

    `undone` is whether the view had not begun, or a transaction around it was rolled back.
    """
    if isinstance(error, (LockLost, ResourceLocked, StoreUnavailable)):
        known = undone or request.method in _SAFE_METHODS
        vars(error).setdefault("may_have_effects", not known)


def was_rolled_back_by_django(request: Any, error: BaseException) -> bool:
    """Return whether Django rolled back ATOMIC_REQUESTS for an error that a view has raised."""
    match = request.resolver_match
    excluded = getattr(match.func, "_non_atomic_requests", ()) if match is not None else ()
    opened = any(
        database["ATOMIC_REQUESTS"] and alias not in excluded
        for alias, database in connections.settings.items()
    )
    return opened and not _is_of_commit_hook(error)


def _is_of_commit_hook(error: BaseException) -> bool:
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_name == "run_and_clear_commit_hooks":
            return True  # raised after COMMIT
        frame = frame.tb_next
    return False
