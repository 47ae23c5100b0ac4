"""The rules: each sends requests, and says whether the service did what the rule asks.

A rule of level MUST or SHOULD is one of draft-ietf-httpapi-idempotency-key-header-07, in the
section that it names; "client" rules are what a client relies on although the draft does not say
it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from redlock_django.conformance.config import Operation
from redlock_django.conformance.exchange import (
    Answer,
    Burst,
    HTTPExchange,
    NoAnswer,
    Service,
    TooManyRequests,
)

LONG = 4000  # characters of a key that no service needs to accept
CONFLICT, UNPROCESSABLE, TOO_EARLY, BAD_REQUEST = 409, 422, 425, 400
EXTRA = 0.5  # seconds after the expiry of a key


class Outcome(Enum):
    """The verdict on a rule."""

    PASS = "pass"
    FAIL = "fail"
    DIFFERS = "differs as stated"
    NOT_TRIED = "not tried"


@dataclass(frozen=True)
class Rule:
    """A rule: its name, level, section of the draft, and what it asks of a service."""

    name: str
    level: str
    source: str
    text: str
    check: Callable[[Service], None] = field(repr=False)


@dataclass(frozen=True)
class Result:
    """The verdict on one rule, why, and the exchanges that show it."""

    rule: Rule
    outcome: Outcome
    why: str = ""
    exchanges: Sequence[HTTPExchange] = ()


class Broken(Exception):
    """The service did something else than the rule asks; the message says what."""


class NotTried(Exception):
    """The rule cannot be tried; the message says what would be needed."""


RULES: list[Rule] = []


def rule(
    name: str, level: str, source: str, text: str
) -> Callable[[Callable[[Service], None]], None]:
    """Add a rule to RULES, in the order of the report."""

    def add(check: Callable[[Service], None]) -> None:
        RULES.append(Rule(name, level, source, text, check))

    return add


def run(service: Service) -> list[Result]:
    """Return what is said of each rule; none is tried after a first request that fails."""
    results: list[Result] = []
    for one in RULES:
        if results and results[0].outcome is Outcome.FAIL:
            results.append(Result(one, Outcome.NOT_TRIED, "the first request did not succeed"))
        else:
            results.append(_try(one, service))
    return results


def _try(one: Rule, service: Service) -> Result:
    began = len(service.exchanges)
    stated = service.config.differs.get(one.name)
    try:
        one.check(service)
    except Broken as error:
        shown = service.exchanges[began:]
        if stated is not None:
            return Result(one, Outcome.DIFFERS, f"{stated} ({error})", shown)
        return Result(one, Outcome.FAIL, str(error), shown)
    except (NotTried, TooManyRequests) as error:
        return Result(one, Outcome.NOT_TRIED, str(error), service.exchanges[began:])
    except NoAnswer as error:
        return Result(one, Outcome.FAIL, str(error), service.exchanges[began:])
    why = "a difference was stated, and is not there" if stated is not None else ""
    return Result(one, Outcome.PASS, why, service.exchanges[began:])


def expect(kept: bool, otherwise: str) -> None:
    """Raise Broken with a message unless something was kept."""
    if not kept:
        raise Broken(otherwise)


def some_key() -> str:
    """Return a key that nobody has used."""
    return secrets.token_hex(16)


def done(service: Service, operation: Operation, new: str, key: str, user: str = "first") -> Answer:
    """Send an operation that must succeed. Raises Broken if it does not."""
    answer = service.send(operation, new, key, user=user)
    allowed = service.config.success
    expect(answer.status in allowed, f"status {answer.status} instead of one of {list(allowed)}")
    return answer


def given(operation: Operation | None, table: str) -> Operation:
    """Return an operation of the configuration. Raises NotTried if it has none."""
    if operation is None:
        raise NotTried(f"needs [{table}] in the configuration")
    return operation


def expect_one_effect(service: Service, new: str, before: int | None, many: int = 1) -> None:
    """Raise Broken unless the operation took effect that often since `before`."""
    after = service.effects(new)
    if before is not None and after is not None:
        expect(after - before == many, f"it took effect {after - before} times instead of {many}")


def _expect_same(
    first: Answer, second: Answer, headers: Sequence[str] = (), *, but: str = ""
) -> None:
    differ = [name for name in first.same(second, headers) if name != but]
    expect(not differ, f"not the same: {', '.join(differ)}")


def _no_replay(first: Answer, second: Answer, what: str) -> None:
    replayed = second.status == first.status and second.body == first.body and bool(first.body)
    expect(not replayed, f"{what} got the first response again")


@rule(
    "first-request",
    "MUST",
    "2.1",
    "A request with a new key succeeds; the key is an RFC 9651 String",
)
def _first_request(service: Service) -> None:
    done(service, service.config.operation, service.new(), some_key())


@rule("key-required", "SHOULD", "2.7", "An operation that needs a key answers 400 without one")
def _key_required(service: Service) -> None:
    if not service.config.required:
        raise NotTried("needs [key] required = true")
    answer = service.send(service.config.operation, service.new())
    expect(answer.status == BAD_REQUEST, f"status {answer.status} instead of 400")


def _retry(service: Service) -> tuple[Answer, Answer]:
    new, key = service.new(), some_key()
    first = done(service, service.config.operation, new, key)
    return first, service.send(service.config.operation, new, key)


@rule("replay", "SHOULD", "2.6", "A retry gets the result of the first request: status and body")
def _replay(service: Service) -> None:
    first, second = _retry(service)
    _expect_same(first, second)


@rule("replay-headers", "client", "", "A retry gets the headers that describe the result, too")
def _replay_headers(service: Service) -> None:
    first, second = _retry(service)
    _expect_same(first, second, service.config.same_headers, but="body")


@rule("one-effect", "MUST", "2.6", "A retry takes no effect")
def _one_effect(service: Service) -> None:
    new, key = service.new(), some_key()
    before = service.effects(new)
    if before is None:
        raise NotTried("needs [effects]; see replay")
    done(service, service.config.operation, new, key)
    service.send(service.config.operation, new, key)
    expect_one_effect(service, new, before)


@rule("other-key", "MUST", "2.2", "The same request with another key is another request")
def _other_key(service: Service) -> None:
    new = service.new()
    first = done(service, service.config.operation, new, some_key())
    second = service.send(service.config.operation, new, some_key())
    _no_replay(first, second, "another key")


@rule(
    "other-body", "SHOULD", "2.7", "A key that is used again with another body is refused with 422"
)
def _other_body(service: Service) -> None:
    other = given(service.config.other, "other")
    new, key = service.new(), some_key()
    done(service, service.config.operation, new, key)
    before = service.effects(new)
    second = service.send(other, new, key)
    expect(second.status == UNPROCESSABLE, f"status {second.status} instead of 422")
    expect_one_effect(service, new, before, 0)


@rule("other-user", "client", "5", "A user does not get the response of another one by its key")
def _other_user(service: Service) -> None:
    if "second" not in service.config.users:
        raise NotTried("needs [users] second")
    new, key = service.new(), some_key()
    first = done(service, service.config.operation, new, key)
    second = service.send(service.config.operation, new, key, user="second")
    _no_replay(first, second, "the second user")


def _together(service: Service) -> Burst:
    """Return the answers to the same requests for all rules about them, which are sent once."""
    if service.burst is not None:
        service.exchanges += service.burst.exchanges  # they show this rule, too
        return service.burst
    began = len(service.exchanges)
    operation = service.config.slow or service.config.operation
    new = service.new()
    before = service.effects(new)
    answers = service.send_together(operation, new, some_key(), service.config.together)
    service.burst = Burst(answers, new, before, service.exchanges[began:])
    return service.burst


@rule(
    "concurrent", "SHOULD", "2.6", "A retry while the first request is running is refused with 409"
)
def _concurrent(service: Service) -> None:
    answers = _together(service).answers
    statuses = [one.status for one in answers]
    winners = [one for one in answers if one.status in service.config.success]
    expect(bool(winners), f"none of {len(answers)} requests at once succeeded: {statuses}")
    refused = [one for one in statuses if one == CONFLICT]
    replays = [one for one in winners if not winners[0].same(one, ())]
    expect(
        len(refused) + len(replays) == len(answers),
        f"statuses {statuses} instead of one success and 409, or copies of the success",
    )
    expect(bool(refused), f"{len(replays)} requests at once got the same response: they waited")


@rule("concurrent-effect", "MUST", "2.6", "Requests at the same time with one key take effect once")
def _concurrent_effect(service: Service) -> None:
    burst = _together(service)
    winners = {one.body for one in burst.answers if one.status in service.config.success}
    expect(len(winners) <= 1, f"{len(winners)} different successful responses")
    if burst.before is not None:
        expect_one_effect(service, burst.new, burst.before)


@rule("after-conflict", "client", "2.6", "After a 409, a retry gets the result once there is one")
def _after_conflict(service: Service) -> None:
    operation = service.config.slow or service.config.operation
    new, key = service.new(), some_key()
    answers = service.send_together(operation, new, key, 2)
    first = next((one for one in answers if one.status in service.config.success), None)
    if first is None:
        raise Broken(f"none of two requests at once succeeded: {[one.status for one in answers]}")
    later = service.send(operation, new, key)
    _expect_same(first, later)


@rule("error-replayed", "SHOULD", "2.6", "An error of the first request is its result, too")
def _error_replayed(service: Service) -> None:
    operation = given(service.config.error, "error")
    new, key = service.new(), some_key()
    first = service.send(operation, new, key)
    expect(400 <= first.status < 500, f"[error] is answered {first.status} instead of 4xx")
    second = service.send(operation, new, key)
    _expect_same(first, second)


@rule("expired", "client", "2.3", "After its expiry, a key is refused or runs again; nothing fails")
def _expired(service: Service) -> None:
    if service.config.expires_after is None:
        raise NotTried("needs [key] expires_after, in seconds")
    new, key = service.new(), some_key()
    first = done(service, service.config.operation, new, key)
    time.sleep(service.config.expires_after + EXTRA)
    later = service.send(service.config.operation, new, key)
    _no_replay(first, later, "an expired key")
    expect(later.status < 500, f"status {later.status}")


def _malformed(service: Service, key: str, what: str) -> None:
    """Expect that the service refuses a value that cannot be a key."""
    new = service.new()
    first = service.send(service.config.operation, new, key, raw=True)
    expect(first.status < 500, f"{what}: status {first.status}")
    expect(first.status not in service.config.success, f"{what}: accepted ({first.status})")
    expect(first.status == BAD_REQUEST, f"{what}: status {first.status} instead of 400")


@rule("empty-key", "client", "2.1", "An empty key is refused with 400")
def _empty_key(service: Service) -> None:
    _malformed(service, '""', "an empty String")


@rule("malformed-key", "client", "2.1", "A value that no client can have meant is refused with 400")
def _malformed_key(service: Service) -> None:
    for key, what in (('"open', "a quotation mark at the start only"), ('"a", "b"', "two keys")):
        _malformed(service, key, what)


@rule("bare-key", "MUST", "2.1", "A value other than a String (RFC 9651) is refused with 400")
def _bare_key(service: Service) -> None:
    _malformed(service, f"bare-{some_key()}", "a key without quotation marks")


@rule("odd-key", "client", "2.1", "A key with bytes that a String cannot have is refused with 400")
def _odd_key(service: Service) -> None:
    _malformed(service, '"caf\xe9"', "a letter that is not ASCII")


@rule("long-key", "client", "2.1", "A very long key is refused or works; nothing fails")
def _long_key(service: Service) -> None:
    answer = service.send(service.config.operation, service.new(), "k" * LONG)
    expect(answer.status < 500, f"a key of {LONG} characters: status {answer.status}")


def _refusal(service: Service) -> Answer:
    new, key = service.new(), some_key()
    if service.config.other is not None:
        done(service, service.config.operation, new, key)
        answer = service.send(service.config.other, new, key)
    else:
        answer = service.send(service.config.operation, new, '""', raw=True)
    if answer.status < BAD_REQUEST:
        raise NotTried("no refusal is known: see other-body and empty-key")
    return answer


@rule("problem-details", "client", "2.7", "A refusal is a problem document (RFC 9457) with a type")
def _problem_details(service: Service) -> None:
    answer = _refusal(service)
    kind = answer.headers.get("content-type", "")
    expect(kind.startswith("application/problem+json"), f"Content-Type is {kind or 'missing'}")
    try:
        document = json.loads(answer.body)
    except ValueError:
        document = None
    expect(isinstance(document, dict) and "type" in document, "the body has no member type")


@rule("retry-after", "client", "", "A 409 for a running request says when to try again")
def _retry_after(service: Service) -> None:
    answers = _together(service).answers
    refused = [one for one in answers if one.status in (CONFLICT, TOO_EARLY)]
    if not refused:
        raise NotTried("no request was refused; [slow] would help")
    expect(all("retry-after" in one.headers for one in refused), "Retry-After is missing")


@rule("stream", "client", "", "A streamed response is replayed whole")
def _stream(service: Service) -> None:
    operation = given(service.config.stream, "stream")
    new, key = service.new(), some_key()
    first = done(service, operation, new, key)
    second = service.send(operation, new, key)
    _expect_same(first, second)


NAMES = [one.name for one in RULES]
