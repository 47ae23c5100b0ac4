"""`manage.py release_lock KEY…`: release locks of other clients by force."""

from __future__ import annotations

import re
import time
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from django.core.management.base import CommandError, CommandParser

from redlock_django.engine.inspection.holders import Holding, limit_of
from redlock_django.engine.protocol.slots import MOST_SLOTS, slot_of, slot_resource
from redlock_django.locking.names import check_resource, printable
from redlock_django.management.operator_command import (
    OperatorCommand,
    holder_summary,
    iso,
    operator_name,
    whole_number,
)
from redlock_django.management.single_run import BAD_ARGUMENTS, NO_QUORUM, UsageError
from redlock_django.operate.forced_release import Freed, ReleaseOutcome, force_release
from redlock_django.operate.health import server_word
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
"""The exit status for each outcome. For several keys, the highest one is used."""

RISK = (
    "The holder is not stopped. It notices the release at its next renewal, after a third of its "
    "TTL, or only when the TTL is over if it does not renew the lock; until then, only a fencing "
    "token protects against its writes."
)


class ReleaseResult(NamedTuple):
    """The outcome for one lock (one of STATUSES), and the lock."""

    outcome: str
    freed: Freed


class Command(OperatorCommand):
    """Exit status 0: released. 1: not held, changed, or declined. 2: usage. 3: no quorum."""

    help = (
        "Release locks that other clients hold. The command shows each lock and asks for "
        "confirmation. It releases the lock that was shown, not one that was acquired later. Exit "
        f"status: 0 released; {NOT_RELEASED} not held, held by another lock now, or declined; "
        f"{BAD_ARGUMENTS} wrong arguments or settings; {NO_QUORUM} too few servers answered (the "
        "lock may still be held). For several keys, the highest status is returned."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        add("keys", metavar="KEY", nargs="+", help="the resource of a lock")
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--holder",
            type=_fingerprint,
            metavar="FINGERPRINT",
            help="release only the lock with this fingerprint, which list_locks shows as LOCK",
        )
        which.add_argument(
            "--force", action="store_true", help="release the locks of all holders of KEY"
        )
        slots = parser.add_mutually_exclusive_group()
        slots.add_argument(
            "--slot",
            type=whole_number(0, MOST_SLOTS - 1, of="slots"),
            metavar="N",
            help="release one slot of a KEY that several clients hold (SLOT in list_locks)",
        )
        slots.add_argument("--all-slots", action="store_true", help="release every slot of KEY")
        add("--dry-run", action="store_true", help="show what would be released")
        self.add_confirmation(
            parser, requires="; requires --holder or --force", by="the log and the record"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Show the locks, ask for confirmation, release them and write the results."""
        keys = list(dict.fromkeys(check_resource(key) for key in options["keys"]))
        is_named = options["holder"] or options["force"]
        if not (options["dry_run"] or options["interactive"] or is_named):
            raise UsageError(f"--noinput requires {_NAMED}.")
        page = who_holds(*keys, using=options["using"], slots=True)
        self.warn_of_silent(page.silent)
        held = {holding.resource: holding for holding in page.locks}
        chosen = [resource for key in keys for resource in _chosen(key, page, options)]
        if held and options["interactive"] and not options["dry_run"]:
            self.require_terminal("--noinput" if is_named else f"--noinput and {_NAMED}")
        by = operator_name(options["by"])
        results = [self._result(one, held.get(one), page, by, options) for one in chosen]
        if self.as_json:
            self.write_json(_document(results, by, options))
        else:
            self.write_table(
                ("RESOURCE", "LOCK", "OUTCOME", server_word(options["using"]).upper(), "RESULT"),
                [row for result in results for row in _rows(result)],
                flexible=(0, 4),
            )
        if worst := max(STATUSES[result.outcome] for result in results):
            problems = [_problem(result) for result in results if STATUSES[result.outcome]]
            raise CommandError("\n".join(problems), returncode=worst)

    def _result(
        self,
        resource: str,
        holding: Holding | None,
        page: HeldLocks,
        by: str,
        options: Mapping[str, Any],
    ) -> ReleaseResult:
        held = holding.by_holder() if holding else []
        wanted = [one for one in held if options["holder"] in (None, one.fingerprint)]
        if not options["force"]:
            wanted = wanted[:1]
        if not wanted:
            return _not_released(resource, page, held)
        shown = Freed(
            resource=resource,
            using=page.using,
            outcome=ReleaseOutcome.NOT_HELD,
            fingerprint=wanted[0].fingerprint,
            holder=wanted[0].holder,
        )
        if options["dry_run"]:
            return ReleaseResult(WOULD_RELEASE, shown)
        if options["interactive"] and not self._is_confirmed(wanted, page.using):
            return ReleaseResult(DECLINED, shown)
        fingerprint = None if options["force"] else shown.fingerprint
        freed = force_release(resource, by=by, fingerprint=fingerprint, using=page.using)
        return ReleaseResult(freed.outcome.value, freed)

    def _is_confirmed(self, wanted: list[Holding], using: str) -> bool:
        """Show the locks and ask for confirmation on stderr, because stdout is for data."""
        word = server_word(using)
        for one in wanted:
            left = "no expiry" if one.ttl is None else f"{one.ttl:.1f} s left"
            self.warn(f"{one.label} is held by {holder_summary(one.holder)}")
            self.warn(
                f"  lock {one.fingerprint} ({one.state.value}), since {iso(one.since) or '?'}, "
                f"{left}, on {len(one.leading)} of {len(one.servers)} {word}s"
            )
        return self.confirm(f"{RISK}\nType 'yes' to release it: ")


_NAMED = "--holder FINGERPRINT (list_locks shows it as LOCK) or --force"


def _chosen(key: str, page: HeldLocks, options: Mapping[str, Any]) -> list[str]:
    """Return the resources to release: the key, or slots of it; raise UsageError if unclear."""
    if options["slot"] is not None:
        return [slot_resource(key, options["slot"])]
    held = [one for one in page.locks if one.name == key]
    if fingerprint := options["holder"]:
        seen = [one for one in held if fingerprint in {by.fingerprint for by in one.by_holder()}]
        held = seen or held[:1]
    elif len(held) > 1 and not options["all_slots"]:
        raise UsageError(_which_slot(key, held, page))
    return [one.resource for one in held] or [key]


def _which_slot(key: str, held: list[Holding], page: HeldLocks) -> str:
    """Return the error that names the holders, of whom the operator must choose."""
    lines = [f"{key} has several holders: {page.slots[key]} slots are held."]
    for one in held:
        holder = f"lock {one.fingerprint} of {holder_summary(one.holder)}"
        lines.append(f"  slot {slot_of(one.resource)}: {holder}")
    example = f"--slot {slot_of(held[0].resource)}"
    return "\n".join([*lines, f"Add {example} (or another of them), or --all-slots."])


def _not_released(resource: str, page: HeldLocks, held: list[Holding]) -> ReleaseResult:
    """Return the result for a resource that has no lock to release."""
    if held:
        outcome = ReleaseOutcome.CHANGED
    elif not page.complete:
        outcome = ReleaseOutcome.NO_QUORUM
    else:
        outcome = ReleaseOutcome.NOT_HELD
    now = held[0].fingerprint if held else ""
    freed = Freed(
        resource=resource, using=page.using, outcome=outcome, now=now, masters=page.silent
    )
    return ReleaseResult(outcome.value, freed)


def _problem(result: ReleaseResult) -> str:
    freed = result.freed
    match result.outcome:
        case ReleaseOutcome.NOT_HELD.value:
            nearest = ", ".join(map(printable, _nearest(result)))
            similar = f" Similar resources that are held: {nearest}" if nearest else ""
            return f"{freed.label} is not held.{similar}"
        case ReleaseOutcome.CHANGED.value:
            return f"{freed.label} was not released: it is now held as lock {freed.now}."
        case ReleaseOutcome.NO_QUORUM.value:
            servers = f"{server_word(freed.using)}s"
            return f"Too few {servers} answered: {freed.label} may still be held."
    return f"{freed.label} was not released."


def _nearest(result: ReleaseResult) -> list[str]:
    wanted = result.outcome == ReleaseOutcome.NOT_HELD.value
    return nearest_held(result.freed.name, result.freed.using) if wanted else []


def _rows(result: ReleaseResult) -> Iterator[tuple[str, ...]]:
    freed = result.freed
    for name, answer in freed.masters.items() or [("", "")]:
        yield freed.label, freed.fingerprint, result.outcome, name, answer


def _document(results: list[ReleaseResult], by: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "using": options["using"],
        "at": iso(time.time()),
        "by": by,
        "dry_run": options["dry_run"],
        "results": [
            {
                "resource": result.freed.name,
                "slot": result.freed.slot,
                "limit": limit_of(result.freed.holder),
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
