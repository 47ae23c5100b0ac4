"""State that belongs to the threads of a process, and is made again when these are replaced.

In a forked child no thread of its parent runs, and a mutex that one of them held stays locked.
Where `gevent.monkey.patch_all()` was called, threads are greenlets: a mutex, queue or event from
before the call would block all of them at once, for ever. So each module that keeps such objects
registers a function that makes them again. All other modules look their primitives up when they
need them: `queue.SimpleQueue()`, not `from queue import SimpleQueue`.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable

_resets: list[Callable[[], object]] = []
get_ident = threading.get_ident
"""The function as it was at the last call of `follow_patches`: it is replaced with the threads.

Every lock compares it, and calls `follow_patches` only if it differs.
"""


def reset_with_threads(reset: Callable[[], object]) -> None:
    """Call `reset` in each forked child, and where gevent has replaced threads by greenlets."""
    _resets.append(reset)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)


def follow_patches() -> None:
    """Make what belongs to threads again, because gevent or eventlet has replaced the threads.

    Raises InvalidRedlock if a thread from before that still serves locks, and for eventlet.
    """
    global get_ident
    check_poll()
    if any(thread.name.startswith("redlock-") for thread in threading.enumerate()):
        from redlock_django.exceptions import InvalidRedlock  # not above: it is hardly ever needed

        raise InvalidRedlock(
            "This process had used locks before its threads were replaced by greenlets, and the "
            "threads of these locks still run. Call gevent.monkey.patch_all() first: before "
            "django.setup(), or in a forked worker"
        )
    for reset in _resets:
        reset()
    get_ident = threading.get_ident


def check_poll() -> None:
    """Raise InvalidRedlock where threads cannot wait for several connections at once."""
    if not hasattr(select, "poll"):
        from redlock_django.exceptions import InvalidRedlock

        raise InvalidRedlock(
            "This process has no select.poll(), on which threads wait for the servers of locks. "
            "eventlet.monkey_patch() removes it: use gevent, threads or asyncio instead"
        )


def threads_are_greenlets() -> bool:
    """Return whether gevent has replaced threads by greenlets in this process."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))
