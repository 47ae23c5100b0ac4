"""Client 1 of `test_pause.py`, as a process: acquire the lock, read, wait, write.

`python -m tests.live.fencing.withdraw fenced|unfenced`, with the database and the masters in the
environment. It prints each step to stdout, and writes after it has read a line from stdin.
"""

from __future__ import annotations

import json
import os
import sys

import django
from django.conf import settings

from tests.timeouts import generous_timeouts

AMOUNT = 30


def print_step(step: str) -> None:
    sys.stdout.write(step + "\n")
    sys.stdout.flush()


def main(fenced: bool) -> None:
    """Withdraw once, and print the result."""
    from redlock_django import LockLost, lock
    from tests.live.fencing.accounts import Account

    with lock("account:1", ttl=1, wait=60) as held:
        rows = Account.objects.filter(pk=1)
        account = rows.fenced(held).claim().get() if fenced else rows.get()
        print_step(f"read {account.balance}")
        sys.stdin.readline()  # the test stops the process here, for longer than its TTL
        left = account.balance - AMOUNT
        try:
            if fenced:
                rows.fenced(held).update(balance=left)
            else:
                rows.update(balance=left)
        except LockLost as error:
            print_step(f"refused: {error}")
        else:
            print_step(f"wrote {left}")


if __name__ == "__main__":
    settings.configure(
        DATABASES={"default": json.loads(os.environ["DATABASE"])},
        REDLOCK={"default": {"MASTERS": os.environ["MASTERS"], **generous_timeouts(1.0)}},
        INSTALLED_APPS=["redlock_django"],
    )
    if "mysql" in os.environ["DATABASE"]:
        __import__("pymysql").install_as_MySQLdb()
    django.setup()
    main(fenced=sys.argv[1] == "fenced")
