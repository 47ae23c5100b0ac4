"""`manage.py release_lock KEY…`: free a lock that somebody else holds, the one that was shown."""

from __future__ import annotations

import re
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from django.core.management.base import CommandError, CommandParser

from redlock_django.engine.holders import Holding
from redlock_django.locking.names import check_resource, printable
from redlock_django.management.operating import OperatorCommand, iso, person, whoever
from redlock_django.management.single_run import BAD_ARGUMENTS, NO_QUORUM
from redlock_django.operate.forced_release import Freed, ReleaseOutcome, force_release
from redlock_django.operate.inspection import HeldLocks, nearest_held, who_holds

NOT_RELEASED = 1
WOULD_RELEASE, DECLINED = "would release", "declined"
STATUSES: Mapping[str, int] = {
    ReleaseOutcome.RELEASED.value: 0,
    WOULD_RELEASE: 0,
    DECLINED: NOT_RELEASED,
    ReleaseOutcome.NOT_HELD.value: NOT_RELEASED,
    ReleaseOutcome.CHANGED.value: NOT_RELEASED,
    ReleaseOutcome.NO_QUORUM.value: NO_QUORUM,
}
"""Every outcome with its exit status; of several keys the worst counts."""

RISK = (
    "Its holder is not stopped: it learns of it at its next renewal or ensure_held(), and until "
    "then only a fencing token keeps its writes out."
)


class Result(NamedTuple):
    """What came of one key: one of STATUSES, and what is known of the lock."""

    outcome: str
    freed: Freed


class Command(OperatorCommand):
    """Exit status 0: released. 1: not held, changed hands, declined. 2: usage. 3: no quorum."""

    help = (
        "Free locks that somebody else holds. Each lock is shown and asked about; what is released "
        "is the lock that was shown, not one that was taken since. Exit status: 0 released; "
        f"{NOT_RELEASED} not held, changed hands or declined; {BAD_ARGUMENTS} wrong arguments or "
        f"settings; {NO_QUORUM} too few masters (it may still be held); of several keys the worst."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("keys", metavar="KEY", nargs="+", help="the resource of a lock")
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--holder",
            type=_fingerprint,
            metavar="FINGERPRINT",
            help="only the lock with these 8 hex digits, which list_locks shows as LOCK",
        )
        which.add_argument(
            "--force", action="store_true", help="whatever lock is there, of every holder"
        )
        parser.add_argument("--dry-run", action="store_true", help="show what would be released")
        parser.add_argument(
            "--noinput",
            "--no-input",
            action="store_false",
            dest="interactive",
            help="do not ask; needs --holder or --force",
        )
        parser.add_argument(
            "--by", default="", metavar="NAME", help="who you are, for the log and the record"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Show the locks, ask, free them, and say what came of it."""
        keys = list(dict.fromkeys(check_resource(key) for key in options["keys"]))
        if not options["dry_run"]:
            _check_that_it_was_seen(options)
        page = who_holds(*keys, using=options["using"])
        self.warn_of_silent(page.silent)
        held = {holding.resource: holding for holding in page.locks}
        by = whoever(options["by"])
        results = [self._result(key, held.get(key), page, by, options) for key in keys]
        if self.as_json:
            self.write_json(_document(results, by, options))
        else:
            self.write_table(
                ("RESOURCE", "LOCK", "OUTCOME", "MASTER", "RESULT"),
                [row for result in results for row in _rows(result)],
                flexible=(0, 4),
            )
        if worst := max(STATUSES[result.outcome] for result in results):
            problems = [_problem(result) for result in results if STATUSES[result.outcome]]
            raise CommandError("\n".join(problems), returncode=worst)

    def _result(
        self,
        key: str,
        holding: Holding | None,
        page: HeldLocks,
        by: str,
        options: Mapping[str, Any],
    ) -> Result:
        held = holding.by_holder() if holding else []
        wanted = [one for one in held if options["holder"] in (None, one.fingerprint)]
        if not options["force"]:
            wanted = wanted[:1]
        if not wanted:
            return _nothing(key, page, held)
        shown = Freed(
            resource=key,
            using=page.using,
            outcome=ReleaseOutcome.NOT_HELD,
            fingerprint=wanted[0].fingerprint,
            holder=wanted[0].holder,
        )
        if options["dry_run"]:
            return Result(WOULD_RELEASE, shown)
        if options["interactive"] and not self._agreed(wanted):
            return Result(DECLINED, shown)
        fingerprint = None if options["force"] else shown.fingerprint
        freed = force_release(key, by=by, fingerprint=fingerprint, using=page.using)
        return Result(freed.outcome.value, freed)

    def _agreed(self, wanted: list[Holding]) -> bool:
        """Show the lock and ask; all on stderr, since stdout is for data."""
        for one in wanted:
            left = "never ends" if one.ttl is None else f"{one.ttl:.1f} s left"
            self.warn(f"{one.resource} is held by {person(one.holder)}")
            self.warn(
                f"  lock {one.fingerprint} ({one.state.value}), since {iso(one.since) or '?'}, "
                f"{left}, on {len(one.leading)} of {len(one.servers)} masters"
            )
        return self.asked(f"{RISK}\nType 'yes' to release it: ")


def _check_that_it_was_seen(options: Mapping[str, Any]) -> None:
    """Somebody has to have seen which lock it is, or to say that it may be any."""
    named = options["holder"] or options["force"]
    hint = "--holder FINGERPRINT (list_locks shows it as LOCK) or --force"
    if not options["interactive"] and not named:
        raise CommandError(f"--noinput needs {hint}.", returncode=BAD_ARGUMENTS)
    if options["interactive"] and not sys.stdin.isatty():
        needed = "--noinput" if named else f"--noinput and {hint}"
        problem = f"There is no terminal to ask on: add {needed}."
        raise CommandError(problem, returncode=BAD_ARGUMENTS)


def _nothing(key: str, page: HeldLocks, held: list[Holding]) -> Result:
    """Say of a key why there is nothing to free."""
    if held:
        outcome = ReleaseOutcome.CHANGED
    elif key in page.undecided:
        outcome = ReleaseOutcome.NO_QUORUM
    else:
        outcome = ReleaseOutcome.NOT_HELD
    now = held[0].fingerprint if held else ""
    freed = Freed(resource=key, using=page.using, outcome=outcome, now=now, masters=page.silent)
    return Result(outcome.value, freed)


def _problem(result: Result) -> str:
    freed = result.freed
    match result.outcome:
        case ReleaseOutcome.NOT_HELD.value:
            nearest = ", ".join(map(printable, _nearest(result)))
            return f"{freed.resource} is not held." + (f" Held is: {nearest}" if nearest else "")
        case ReleaseOutcome.CHANGED.value:
            return f"{freed.resource} has changed hands: lock {freed.now} holds it now."
        case ReleaseOutcome.NO_QUORUM.value:
            return f"{freed.resource} may still be held: too few masters answered."
    return f"{freed.resource} was not released."


def _nearest(result: Result) -> list[str]:
    wanted = result.outcome == ReleaseOutcome.NOT_HELD.value
    return nearest_held(result.freed.resource, result.freed.using) if wanted else []


def _rows(result: Result) -> Iterator[tuple[str, ...]]:
    freed = result.freed
    for name, said in freed.masters.items() or [("", "")]:
        yield freed.resource, freed.fingerprint, result.outcome, name, said


def _document(results: list[Result], by: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "using": options["using"],
        "at": iso(time.time()),
        "by": by,
        "dry_run": options["dry_run"],
        "results": [
            {
                "resource": result.freed.resource,
                "outcome": result.outcome,
                "fingerprint": result.freed.fingerprint,
                "holder": dict(result.freed.holder),
                "now": result.freed.now,
                "masters": dict(result.freed.masters),
                "nearest": _nearest(result),
            }
            for result in results
        ],
    }


def _fingerprint(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{8}", text):
        raise ArgumentTypeError("must be the 8 hex digits that list_locks shows as LOCK")
    return text
