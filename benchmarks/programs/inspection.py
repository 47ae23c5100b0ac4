"""The cost of inspection with many held locks: `python -m benchmarks inspection --locks 100000`.

It plants held locks on real masters, and prints the processor time that this process uses for
each operation of `list_locks` and the admin. The masters run in processes of their own, so their
time is not counted. Of several runs the least time is printed, which other work on the machine has
disturbed least, and the median.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import time
from collections.abc import Callable

from benchmarks.harness.results import Results, Row
from benchmarks.harness.workload import Column, Table
from benchmarks.programs import configure
from redlock_django.testing import LocalMaster, local_masters

PLANT = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for number = tonumber(ARGV[1]), tonumber(ARGV[2]) - 1 do
  local name, left = string.format('order:%06d', number), 3600000 + number * 17 % 100003
  local token = string.format('%032x', number)
  local about = '{"host":"web%d.example.org","pid":%d,"app":"shop",'
  about = string.format(about, number % 20, 100 + number % 50)
  local rest = '"at":%d,"path":"/orders/%d/pay/","user":"%d"}'
  about = about .. string.format(rest, clock[1] - number % 600, number, number % 977)
  redis.call('SET', 'redlock:lock:' .. name, token .. ' ' .. about, 'PX', left)
  redis.call('ZADD', 'redlock:held', string.format('%.0f', now + left), name)
end
"""
STEP = 2000  # locks that one script plants
LIST = "/admin/redlock_django/heldlock/"


COLUMNS = [
    Column("least ms", "here", "one", "cpu_ms", reduce=min),
    Column("median ms", "here", "one", "cpu_ms"),
]


def main() -> None:
    """Plant the locks, measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks inspection")
    parser.add_argument("--locks", type=int, default=100_000)
    parser.add_argument("--masters", type=int, default=5)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--profile", metavar="PART", help="profile the operations named so")
    given = parser.parse_args()
    with local_masters(given.masters) as masters:
        for master in masters:
            plant(master, given.locks)
        urls = [master.url for master in masters]
        configure(
            REDLOCK={"default": {"MASTERS": urls, "RESTART_DELAY": 0}},
            ALLOWED_HOSTS=["*"],
            DEBUG=False,
        )
        results = Results()
        for name, operation in _operations().items():
            if given.profile and given.profile not in name:
                continue
            operation()  # imports, compiled templates
            for number in range(given.runs):
                figures = {"cpu_ms": 1000 * _processor_time(operation)}
                results.add(Row("inspection", "here", "one", name, number, figures))
            if given.profile:
                with cProfile.Profile() as profile:
                    operation()
                pstats.Stats(profile).sort_stats("cumtime").print_stats(200)
    title = f"{given.locks:,} locks on {given.masters} masters, processor time of the client"
    print("\n".join(Table(title, COLUMNS).page(results, "inspection")))


def plant(master: LocalMaster, locks: int) -> None:
    """Store held locks on a master."""
    with master.client() as client:
        for start in range(0, locks, STEP):
            client.eval(PLANT, 0, start, min(start + STEP, locks))


def _operations() -> dict[str, Callable[[], object]]:
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    call_command("migrate", verbosity=0)
    admin = Client()
    admin.force_login(User.objects.create_superuser("operator"))

    def page(**query: str) -> Callable[[], object]:
        def fetch() -> None:
            response = admin.get(LIST, query)
            assert response.status_code == 200, response

        return fetch

    def command(*arguments: str) -> Callable[[], object]:
        def run() -> None:
            call_command("list_locks", *arguments, stdout=io.StringIO(), stderr=io.StringIO())

        return run

    return {
        "admin: first page": page(),
        "admin: page 50": page(p="50"),
        "admin: search with 100 matches": page(q="order:0420"),
        "admin: search with 100,000 matches": page(q="order:"),
        "list_locks": command(),
        "list_locks --search order:0420": command("--search", "order:0420"),
        "list_locks --limit 10000": command("--limit", "10000"),
    }


def _processor_time(operation: Callable[[], object]) -> float:
    begun = time.process_time()
    operation()
    return time.process_time() - begun
