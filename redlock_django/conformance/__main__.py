"""`python -m redlock_django.conformance URL --config FILE`: print a table, or JSON.

The exit status is 0 if no rule failed, 1 if one did, 2 for a bad URL or configuration.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from redlock_django.conformance.config import BadConfig, read
from redlock_django.conformance.exchange import Service
from redlock_django.conformance.rules import NAMES, Outcome, Result, run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rules against a service and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m redlock_django.conformance",
        description="Ask a service whether it honours Idempotency-Key.",
    )
    parser.add_argument("url", help="http://HOST or https://HOST; requests go to it alone")
    parser.add_argument("--config", type=Path, required=True, help="a TOML file: what may be sent")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    options = parser.parse_args(argv)
    try:
        service = Service(options.url, read(options.config, NAMES))
    except BadConfig as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    results = run(service)
    if options.format == "json":
        sys.stdout.write(json.dumps(document(service, results), indent=2) + "\n")
    else:
        sys.stdout.write("\n".join([*table(results), ""]))
    return 1 if any(one.outcome is Outcome.FAIL for one in results) else 0


def table(results: Sequence[Result]) -> Iterator[str]:
    """Yield a table in Markdown, and the exchanges of each rule that failed."""
    yield "| Rule | Level | Outcome | |"
    yield "|---|---|---|---|"
    for one in results:
        level = f"{one.rule.level} {one.rule.source}".strip()
        why = one.why.replace("|", "\\|").replace("\n", " ")
        yield f"| `{one.rule.name}`: {one.rule.text} | {level} | {one.outcome.value} | {why} |"
    count = Counter(one.outcome for one in results)
    yield ""
    yield ", ".join(f"{count[outcome]} {outcome.value}" for outcome in Outcome)
    for one in results:
        if one.outcome is Outcome.FAIL:
            yield f"\n{one.rule.name}: {one.why}"
            for exchange in one.exchanges:
                shown = exchange.as_json()
                yield f"  {shown['request']['line']}  {json.dumps(shown['request']['headers'])}"
                yield f"    {shown['response']['status']}  {shown['response']['body']}"


def document(service: Service, results: Sequence[Result]) -> dict[str, Any]:
    """Return the results as JSON: one object a rule, with the exchanges that show it."""
    return {
        "url": service.url,
        "requests": service.sent,
        "rules": [
            {
                "name": one.rule.name,
                "level": one.rule.level,
                "section": one.rule.source,
                "text": one.rule.text,
                "outcome": one.outcome.value,
                "why": one.why,
                "exchanges": [exchange.as_json() for exchange in one.exchanges],
            }
            for one in results
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
