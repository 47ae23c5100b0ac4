"""The configuration of gunicorn for `tests.live.green_site`."""

from __future__ import annotations


def post_worker_init(worker: object) -> None:
    """Connect to the masters, as docs/how-to/operate.md says."""
    from redlock_django import locks

    locks.connect()
