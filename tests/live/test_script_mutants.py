"""The Lua with one rule less, beside the model: the differential test must tell."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from hashlib import sha1
from typing import TYPE_CHECKING

import pytest

from redlock_django.engine.commands import script
from tests.live import differential, test_scripts

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live

Beside = Callable[["list[LocalMaster]"], None]


def _commands(masters: list[LocalMaster]) -> None:
    for seed in range(4):
        test_scripts.test_the_model_answers_as_the_scripts_do(masters, seed)


def _joins(masters: list[LocalMaster]) -> None:
    test_scripts.test_the_model_joins_as_the_script_does(masters)


FENCE_AHEAD = "> now + 2 *"
READY = " or now < tonumber(ARGV[#ARGV])"
MUTANTS: list[tuple[str, str, str, str]] = [
    # what it is, script, what stands there, what is put in its place
    ("acquire digs up", "acquire", "if seen[3] then", "if false then"),
    ("acquire takes any marker", "acquire", "seen[1] ~= ARGV[#ARGV - 1] or", ""),
    ("acquire is ready at once", "acquire", READY, ""),
    ("acquire overwrites", "acquire", "lock and lock ~= value", "false"),
    ("no clamp above", "acquire", "math.min(math.max(tonumber(ARGV[4]), now - skew), now + skew)",
     "math.max(tonumber(ARGV[4]), now - skew)"),
    ("no clamp below", "acquire", "math.min(math.max(tonumber(ARGV[4]), now - skew), now + skew)",
     "math.min(tonumber(ARGV[4]), now + skew)"),
    ("fences from the clock alone", "acquire", "math.max(stored + 1, proposal)", "proposal"),
    ("a poisoned fence counts", "acquire", FENCE_AHEAD, "> 9e99 + now + 2 *"),
    ("any text is a fence", "acquire", "if fence and not (fence:find('^%d+$') and #fence <= 16)",
     "if fence and not tonumber(fence)"),
    ("an overlong lock stays", "acquire", "left > max_ttl and", "false and"),
    ("foreign locks are cut", "acquire",
     " and lock:find('^%x+ {') == 1 and lock:find(' ', 1, true) == 33", ""),
    ("a resend is a new grant", "acquire", "if not (lock and fence) then", "if true then"),
    ("confirmed by anybody", "confirm", "if lock ~= ARGV[2] then", "if false then"),
    ("confirmed where it is gone", "confirm", "if not lock then",
     "lock = lock or ARGV[2] if false then"),
    ("confirm goes down", "confirm", "math.max(tonumber(fence or 0), tonumber(ARGV[4 + index]))",
     "tonumber(ARGV[4 + index])"),
    ("confirm stores a poisoned fence", "confirm", FENCE_AHEAD, "> 9e99 + now + 2 *"),
    ("an extension takes over", "extend", "if lock and lock ~= ARGV[2] then", "if false then"),
    ("an extension of what is gone", "extend", "if absent > 0 then", "if false then"),
    ("an extension shortens", "extend",
     "if redis.call('PTTL', KEYS[2 + index]) < ttl then", "if true then"),
    ("extend is ready at once", "extend", READY, ""),
    ("heal digs up", "heal", "if seen[3] then", "if false then"),
    ("heal stores a poisoned fence", "heal", FENCE_AHEAD, "> 9e99 + now + 2 *"),
    ("plain DEL", "release", "if lock == ARGV[2]", "if lock"),
    ("a restart goes unnoticed", "join", "was ~= run", "false"),
    ("no quarantine", "join", "local ready = now + delay", "local ready = now"),
    ("any deployment may write", "join", "other ~= print and how ~= 'reconfigure'", "false"),
    ("a ready-at for ever", "join", " and tonumber(at) <= now + delay", ""),
    ("a turn never ends", "acquire", "score < 0 and now < -score", "score < 0"),
]  # fmt: skip


@cache
def bent(of: str, stands: str, put: str, name: str) -> tuple[str, str]:
    """What `commands.script` gives for `name`, where that of `of` has other text in a place."""
    text, digest = script(name)
    if name != of:
        return text, digest
    assert text.count(stands) == 1, (name, stands)
    text = text.replace(stands, put)
    return text, sha1(text.encode(), usedforsecurity=False).hexdigest()


@pytest.mark.parametrize(
    ("of", "stands", "put"), [mutant[1:] for mutant in MUTANTS], ids=[one[0] for one in MUTANTS]
)
def test_a_mutant_is_found_out(
    masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch, of: str, stands: str, put: str
) -> None:
    mutated = partial(bent, of, stands, put)
    mutated(of)
    monkeypatch.setattr(differential, "script", mutated)
    beside: Beside = _joins if of == "join" else _commands
    with pytest.raises(AssertionError):
        beside(masters)
