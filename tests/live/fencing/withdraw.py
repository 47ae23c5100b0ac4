"""Client 1 of the story, a process of its own: take the lock, read, think, write.

`python -m tests.live.fencing.withdraw fenced|unfenced`, with the database and the masters in the
environment. It says on stdout how far it is, and goes on to write after a line on stdin.
"""

from __future__ import annotations

import json
import os
import sys

import django
from django.conf import settings

AMOUNT = 30


def say(what: str) -> None:
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


def main(fenced: bool) -> None:
    """Withdraw once, and say how it went."""
    from redlock_django import LockLost, lock
    from tests.live.fencing.accounts import Account

    with lock("account:1", ttl=1) as held:
        rows = Account.objects.filter(pk=1)
        account = rows.fenced(held).claim().get() if fenced else rows.get()
        say(f"read {account.balance}")
        sys.stdin.readline()  # here the process is stopped, for longer than its TTL
        left = account.balance - AMOUNT
        try:
            if fenced:
                rows.fenced(held).update(balance=left)
            else:
                rows.update(balance=left)
        except LockLost as error:
            say(f"refused: {error}")
        else:
            say(f"wrote {left}")


if __name__ == "__main__":
    settings.configure(
        DATABASES={"default": json.loads(os.environ["DATABASE"])},
        REDLOCK={"default": {"MASTERS": os.environ["MASTERS"]}},
        INSTALLED_APPS=["redlock_django"],
    )
    if "mysql" in os.environ["DATABASE"]:
        __import__("pymysql").install_as_MySQLdb()
    django.setup()
    main(fenced=sys.argv[1] == "fenced")
