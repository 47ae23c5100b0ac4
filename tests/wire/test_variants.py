"""Both drivers live through the same scenario: the same outcomes, the same left on the masters."""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from redlock_django.engine.errors import NotAcquired, QuorumUnreachable
from redlock_django.engine.validity import LeaseState
from tests.waiting import until
from tests.wire.proxy import FaultProxy
from tests.wire.variants import VARIANTS, Variant, joined, make_backend, open_variant

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from redlock_django.engine.quorum import Tally
    from redlock_django.engine.validity import Lease
    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.parametrize("name", VARIANTS)]

PREFIX = "redlock:lock:"


class Play:
    """Says each step to a variant and writes down what came of it."""

    def __init__(self, variant: Variant, masters: Sequence[LocalMaster]) -> None:
        self.variant = variant
        self.masters = masters
        self.lines: list[str] = []
        self.leases: dict[str, Lease] = {}

    def acquire(self, who: str, *resources: str, ttl: float = 8.0) -> None:
        try:
            lease = self.variant.acquire(*resources, ttl=ttl)
        except NotAcquired as error:
            kind = type(error).__name__
            said = kinds(error.tally, whole=isinstance(error, QuorumUnreachable))
            self.lines.append(f"{who} takes {'+'.join(resources)}: {kind} {said}")
        else:
            self.leases[who] = lease
            self.lines.append(f"{who} takes {'+'.join(resources)}: held")

    def extend(self, who: str, *, votes: bool = True) -> None:
        state, self.leases[who] = self.variant.extend(self.leases[who])
        self.variant.settle()  # votes that come after the verdict are wanted, too
        said = reasons(self.leases[who].tally) if votes else ""
        self.lines.append(f"{who} extends: {state.value} {said}".strip())

    def release(self, who: str) -> None:
        freed = self.variant.release(self.leases[who])
        self.lines.append(f"{who} releases: {freed}")

    def look(self) -> None:
        """Write down what stands where, once every answer under way has come in."""
        self.variant.settle()
        self.lines.append(standing(self.masters))

    def wait_clean(self) -> None:
        """Everybody is back: nothing is left anywhere."""
        self.variant.wait_usable(len(self.masters))
        until(lambda: standing(self.masters) == "nothing", f"{standing(self.masters)} goes away")


def kinds(tally: Mapping[str, str], *, whole: bool) -> str:
    """Who is said to hold it; with `whole`, what was wrong with the other masters."""
    said = {re.sub(r"\d[\d.]*", "#", reason) for reason in tally.values()}
    said = {reason for reason in said if reason.startswith("held") is not whole}
    # Who is late to a verdict that stands already is luck.
    return ", ".join(sorted(said - {"granted", "no answer yet", "not asked", "connecting"}))


def reasons(tally: Tally) -> str:
    said = {vote.reason for vote in tally.votes if vote is not None and vote.time is not None}
    return ", ".join(sorted(said - {"granted"}))


def standing(masters: Sequence[LocalMaster]) -> str:
    """What is locked on the masters that answer, by the keys and by the index alike."""
    found: dict[str, list[str]] = {}
    for index, master in enumerate(masters, 1):
        if not master.alive or master.paused:
            continue
        with master.client() as client, client.pipeline() as both_at_once:
            both_at_once.keys(f"{PREFIX}*").zrange("redlock:held", 0, -1)
            locks, members = both_at_once.execute()
        keys = sorted(key.decode().removeprefix(PREFIX) for key in locks)
        listed = sorted(member.decode() for member in members)
        assert listed == keys, f"the index of master {index}"
        for key in keys:
            found.setdefault(key, []).append(str(index))
    return "; ".join(f"{k} on {' '.join(v)}" for k, v in sorted(found.items())) or "nothing"


@contextmanager
def playing(name: str, masters: Sequence[LocalMaster], **settings: Any) -> Iterator[Play]:
    """A play over these masters, all joined."""
    urls = settings.pop("urls", None) or [master.url for master in masters]
    with open_variant(name, make_backend(urls, **settings)) as variant:
        variant.start()
        variant.wait_usable(len(masters))
        variant.settle()
        yield Play(variant, masters)


@pytest.mark.parametrize("n", [1, 3, 5])
def test_a_lock_from_first_to_last(name: str, masters: list[LocalMaster], n: int) -> None:
    everywhere = " ".join(str(index) for index in range(1, n + 1))
    with playing(name, masters[:n]) as play:
        play.acquire("A", "order:1")
        play.look()
        play.acquire("B", "order:1")
        play.acquire("B", "order:2")
        play.look()
        play.extend("A")
        play.release("A")
        play.look()
        play.release("A")
        play.extend("A")
        play.acquire("C", "order:1")
        play.release("C")
        play.release("B")
        play.look()
    assert play.lines == [
        "A takes order:1: held",
        f"order:1 on {everywhere}",
        "B takes order:1: ResourceLocked held by another client for # s",
        "B takes order:2: held",
        f"order:1 on {everywhere}; order:2 on {everywhere}",
        "A extends: renewed",
        "A releases: True",
        f"order:2 on {everywhere}",
        "A releases: False",
        "A extends: lost forgot the lock",
        "C takes order:1: held",
        "C releases: True",
        "B releases: True",
        "nothing",
    ]


def test_several_resources_are_all_or_nothing(name: str, masters: list[LocalMaster]) -> None:
    with playing(name, masters[:3]) as play:
        play.acquire("A", "order:1", "user:7")
        play.look()
        play.acquire("B", "stock:3", "user:7")
        play.look()
        play.extend("A")
        play.release("A")
        play.look()
        play.acquire("B", "stock:3", "user:7")
        play.look()
        play.release("B")
        play.look()
        assert len(play.leases["B"].fences) == 2
        assert play.leases["B"].fences[1] > play.leases["A"].fences[1]
    assert play.lines == [
        "A takes order:1+user:7: held",
        "order:1 on 1 2 3; user:7 on 1 2 3",
        "B takes stock:3+user:7: ResourceLocked held by another client for # s",
        "order:1 on 1 2 3; user:7 on 1 2 3",
        "A extends: renewed",
        "A releases: True",
        "nothing",
        "B takes stock:3+user:7: held",
        "stock:3 on 1 2 3; user:7 on 1 2 3",
        "B releases: True",
        "nothing",
    ]


def test_an_extension_that_begins_too_late_is_a_loss(name: str, masters: list[LocalMaster]) -> None:
    """The deadline may pass between the caller's look at the clock and the engine's."""
    with joined(name, masters[:1]) as variant:
        lease = variant.acquire("order:1")
        state, _ = variant.extend(replace(lease, until=lease.started))
        assert state is LeaseState.LOST
        assert variant.release(lease) is True


MINORITIES = [(1, 3), (2, 5)]


@pytest.mark.parametrize(("down", "n"), MINORITIES)
def test_a_minority_refuses(name: str, masters: list[LocalMaster], down: int, n: int) -> None:
    up = " ".join(str(index) for index in range(down + 1, n + 1))
    with playing(name, masters[:n]) as play:
        for master in masters[:down]:
            master.kill()
        whole_life(play)
        for master in masters[:down]:
            master.start()
        play.wait_clean()
    assert play.lines == life_on(up)


@pytest.mark.parametrize(("down", "n"), MINORITIES)
def test_a_minority_hangs(name: str, masters: list[LocalMaster], down: int, n: int) -> None:
    up = " ".join(str(index) for index in range(down + 1, n + 1))
    with playing(name, masters[:n], master_timeout=0.3) as play:
        for master in masters[:down]:
            master.pause()
        whole_life(play)
        for master in masters[:down]:
            master.resume()
        play.wait_clean()
    assert play.lines == life_on(up)


@pytest.mark.parametrize(("down", "n"), MINORITIES)
def test_a_minority_is_slow(name: str, masters: list[LocalMaster], down: int, n: int) -> None:
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy(m.port)) for m in masters[:down]]
        urls = [proxy.url for proxy in proxies] + [m.url for m in masters[down:n]]
        with playing(name, masters[:n], urls=urls, master_timeout=0.4) as play:
            for proxy in proxies:
                proxy.delay_down = 0.8
            play.acquire("A", "order:1")
            play.acquire("B", "order:1")
            play.extend("A")
            play.release("A")
            play.acquire("B", "order:1")
            play.release("B")
            play.variant.wait_gone(*range(down))
            for proxy in proxies:
                proxy.delay_down = 0.0
            play.wait_clean()
    assert play.lines == [
        "A takes order:1: held",
        "B takes order:1: ResourceLocked held by another client for # s",
        "A extends: renewed",
        "A releases: True",
        "B takes order:1: held",
        "B releases: True",
    ]


@pytest.mark.parametrize(("down", "n"), MINORITIES)
def test_a_minority_is_cut_once_it_has_obeyed(
    name: str, masters: list[LocalMaster], down: int, n: int
) -> None:
    everywhere = " ".join(str(index) for index in range(1, n + 1))
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy(m.port)) for m in masters[:down]]
        urls = [proxy.url for proxy in proxies] + [m.url for m in masters[down:n]]
        with playing(name, masters[:n], urls=urls) as play:
            for proxy in proxies:
                proxy.lose_replies = True
            play.acquire("A", "order:1")
            for proxy in proxies:
                assert proxy.lost.wait(5)
            play.variant.wait_gone(*range(down))
            play.look()
            play.release("A")
            for proxy in proxies:
                proxy.lose_replies = False
            play.wait_clean()
            play.acquire("B", "order:1")
            play.look()
            play.release("B")
            play.look()
    assert play.lines == [
        "A takes order:1: held",
        f"order:1 on {everywhere}",
        "A releases: True",
        "B takes order:1: held",
        f"order:1 on {everywhere}",
        "B releases: True",
        "nothing",
    ]


@pytest.mark.parametrize(("down", "n"), [(2, 3), (3, 5), (2, 4)])
def test_a_majority_is_down(name: str, masters: list[LocalMaster], down: int, n: int) -> None:
    with playing(name, masters[:n]) as play:
        play.acquire("A", "order:1")
        play.look()
        for master in masters[:down]:
            master.kill()
        refused = "refused the connection"
        with suppress(NotAcquired):
            play.variant.acquire("warm-up")  # threads notice only when they have something to say
        until(
            lambda: all(m.reason == refused for m in play.variant.links.masters[:down]),
            "the dead are known to be dead",
        )
        play.acquire("B", "order:2")
        play.extend("A")
        play.look()
        play.release("A")
        play.look()
        for master in masters[:down]:
            master.start()
        play.wait_clean()
        play.acquire("B", "order:2")
        play.release("B")
    everywhere = " ".join(str(index) for index in range(1, n + 1))
    up = " ".join(str(index) for index in range(down + 1, n + 1))
    assert play.lines == [
        "A takes order:1: held",
        f"order:1 on {everywhere}",
        "B takes order:2: QuorumUnreachable refused the connection",
        "A extends: unknown",
        f"order:1 on {up}",
        "A releases: None",
        "nothing",
        "B takes order:2: held",
        "B releases: True",
    ]


@pytest.mark.parametrize(("down", "n"), [(2, 3), (3, 5)])
def test_a_majority_hangs_unknown_to_us(
    name: str, masters: list[LocalMaster], down: int, n: int
) -> None:
    with playing(name, masters[:n], master_timeout=0.3) as play:
        for master in masters[:down]:
            master.pause()
        play.acquire("A", "order:1")
        play.look()
        for master in masters[:down]:
            master.resume()
        play.wait_clean()
    assert play.lines == [
        "A takes order:1: QuorumUnreachable did not answer within # s",
        "nothing",
    ]


def test_the_scripts_are_gone_each_time(name: str, masters: list[LocalMaster]) -> None:
    def flush_scripts() -> None:
        for master in masters[:3]:
            with master.client() as client:
                client.script_flush()

    with playing(name, masters[:3]) as play:
        flush_scripts()
        play.acquire("A", "order:1")
        flush_scripts()
        # A master heard after the verdict may have been told to load a script, no more.
        play.extend("A", votes=False)
        flush_scripts()
        play.acquire("B", "order:1")
        flush_scripts()
        play.release("A")
        play.look()
    assert play.lines == [
        "A takes order:1: held",
        "A extends: renewed",
        "B takes order:1: ResourceLocked held by another client for # s",
        "A releases: True",
        "nothing",
    ]


def test_a_restarted_master_is_given_the_lock_again(name: str, masters: list[LocalMaster]) -> None:
    with playing(name, masters[:3]) as play:
        play.acquire("A", "order:1")
        play.look()
        masters[2].restart()
        play.variant.start()  # threads notice only when they have something to say
        play.variant.wait_usable(3)
        play.look()
        play.extend("A")
        play.look()
        play.extend("A")
        play.look()
        play.release("A")
        play.look()
    assert play.lines == [
        "A takes order:1: held",
        "order:1 on 1 2 3",
        "order:1 on 1 2",
        "A extends: renewed forgot the lock",
        "order:1 on 1 2",
        "A extends: renewed healed: counts from the next extension",
        "order:1 on 1 2 3",
        "A releases: True",
        "nothing",
    ]


def test_flushed_masters_lose_the_lock(name: str, masters: list[LocalMaster]) -> None:
    with playing(name, masters[:3]) as play:
        play.acquire("A", "order:1")
        play.variant.settle()
        for master in masters[:2]:
            with master.client() as client:
                client.flushall()
        play.acquire("B", "order:1")
        play.variant.settle()
        play.variant.wait_usable(3)
        play.extend("A")
        play.look()
        play.release("A")
        play.look()
    assert play.lines == [
        "A takes order:1: held",
        "B takes order:1: QuorumUnreachable not trusted yet",
        "A extends: lost forgot the lock",
        "order:1 on 3",
        "A releases: False",
        "nothing",
    ]


@pytest.mark.parametrize(("fresh", "n"), [(2, 3), (3, 5)])
def test_masters_that_are_not_ready(
    name: str, masters: list[LocalMaster], fresh: int, n: int
) -> None:
    with open_variant(
        name, make_backend([m.url for m in masters[:n]], restart_delay=30)
    ) as variant:
        play = Play(variant, masters[:n])
        with pytest.raises(QuorumUnreachable):
            variant.acquire("order:1")
        play.acquire("A", "order:1")
        play.look()
    fresh_and_what_to_do = (
        "fresh or flushed: trusted in # s ('manage.py redlock_init' trusts fresh masters at once)"
    )
    assert play.lines == [
        f"A takes order:1: QuorumUnreachable {fresh_and_what_to_do}",
        "nothing",
    ]


def whole_life(play: Play) -> None:
    play.acquire("A", "order:1")
    play.look()
    play.acquire("B", "order:1")
    play.extend("A")
    play.release("A")
    play.look()


def life_on(indexes: str) -> list[str]:
    return [
        "A takes order:1: held",
        f"order:1 on {indexes}",
        "B takes order:1: ResourceLocked held by another client for # s",
        "A extends: renewed",
        "A releases: True",
        "nothing",
    ]
