"""Other lists of masters on the same servers: a master replaced, added or under another name."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING

import pytest
from django.test import override_settings

from redlock_django import QuorumUnreachable, lock, locks
from redlock_django.engine.protocol.trust_marker import read_marker
from redlock_django.operate.health import QuorumHealth, master_status
from redlock_django.wire.clock import clock
from tests.live.traffic import Traffic
from tests.losses import ends_lost
from tests.operate.commands import run
from tests.timeouts import generous_timeouts
from tests.waiting import until
from tests.wire.variants import (
    PATIENT,
    VARIANTS,
    make_backend,
    open_variant,
    threads_by_day,
    trust,
    trusted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from redlock_django.testing.masters import LocalMaster
    from tests.wire.variants import Variant

pytestmark = pytest.mark.live

OURS: dict[str, Any] = {"restart_delay": 0.4, "max_ttl": 8.0}


def client(name: str, urls: Sequence[str]) -> AbstractContextManager[Variant]:
    return open_variant(name, make_backend(urls, **PATIENT, **OURS))


def old_client(name: str, masters: Sequence[LocalMaster]) -> AbstractContextManager[Variant]:
    """Connect a client to masters that an operator has declared trusted."""
    return trusted(name, masters, **OURS)


def deployment(master: LocalMaster) -> str:
    """Return the deployment in a master's marker; "" if it has none."""
    with master.client() as connection:
        known = read_marker(connection.get("redlock:master"))
    return known.deployment if known else ""


def use_until(condition: Callable[[], object], *variants: Variant) -> None:
    """Lock with each variant again and again until the condition holds; none may be refused."""

    def used() -> object:
        for number, variant in enumerate(variants):
            variant.release(variant.acquire(f"order:2:{number}"))
        return condition()

    until(used, "locks go on, and the condition holds")


def refused(variant: Variant) -> str:
    with pytest.raises(QuorumUnreachable) as caught:
        variant.acquire("order:1")
    return str(caught.value)


# Without --reconfigure, another list never finds a majority beside the first.


@pytest.mark.fault(without=("a marker without evidence",))
@threads_by_day
def test_a_changed_address_in_a_rolling_deploy_makes_no_second_majority(
    name: str, masters: list[LocalMaster]
) -> None:
    a, b, c, d, _ = masters
    with old_client(name, [a, b, c]) as old, client(name, [a.url, b.url, d.url]) as new:
        refused(new)
        b.restart()
        use_until(lambda: deployment(b), old)
        old.wait_usable(3)
        told = refused(new)
        assert old.backend.deployment.fingerprint in told
        assert new.backend.deployment.fingerprint in told
        assert "redlock_init --reconfigure" in told
        old.release(old.acquire("order:1"))
        assert deployment(b) == old.backend.deployment.fingerprint
        assert deployment(d) == ""


@pytest.mark.fault(without=("another deployment stops nothing",))
@threads_by_day
def test_a_master_of_another_deployment_stops_all_new_locks(
    name: str, masters: list[LocalMaster]
) -> None:
    a, b, c, d, _ = masters
    with old_client(name, [a, b, c]) as old:
        held = old.acquire("order:1")
        with client(name, [a.url, d.url]) as other:
            with a.client() as connection:
                connection.flushall()
            trust(a, other.backend.deployment)
        until(lambda: "not asked" in refused_or_released(old), "the conflict is noticed")
        told = refused(old)
        assert "belongs to another deployment" in told
        assert "redlock_init --reconfigure" in told
        state, held = old.extend(held)
        assert state.value == "renewed", "b and c still have the lock"
        assert old.release(held) is not False


def refused_or_released(variant: Variant) -> str:
    try:
        variant.release(variant.acquire("order:2"))
    except QuorumUnreachable as error:
        return str(error)
    return ""


# The same servers under other names.


@threads_by_day
def test_the_same_servers_under_other_names_are_shared(
    name: str, masters: list[LocalMaster]
) -> None:
    three = masters[:3]
    with ExitStack() as stack:
        old = stack.enter_context(old_client(name, three))
        new = stack.enter_context(client(name, [master.unix_url for master in three]))
        lease = new.acquire("order:1", wait=60.0)
        with pytest.raises(Exception, match="held by another client"):
            old.acquire("order:1")
        new.release(lease)
        for variant in (old, new):
            variant.wait_usable(3)  # two were enough until now, and one of them restarts
        three[2].restart()
        use_until(lambda: deployment(three[2]), old, new)
        for variant in (old, new):
            variant.wait_usable(3)
        prints = {deployment(master) for master in three}
        assert prints == {old.backend.deployment.fingerprint}


# Replacing a master, as docs/how-to/replace-a-master.md says.


@pytest.mark.fault(without=("another deployment stops nothing",))
def test_a_master_is_replaced_at_its_address_while_locks_go_on(
    masters: list[LocalMaster],
) -> None:
    with ExitStack() as stack:
        variants = [stack.enter_context(old_client(name, masters[:3])) for name in VARIANTS]
        traffic = stack.enter_context(Traffic(variants, workers=4, resources=2))
        traffic.wait_for_wins(20, "all are up")
        masters[2].kill()
        traffic.wait_for_wins(20, "the master is gone")
        masters[2].start()  # an empty server
        for variant in variants:
            variant.wait_usable(3)
        traffic.wait_for_wins(20, "the new one is trusted")
        masters[0].kill()
        traffic.wait_for_wins(20, "the new one is needed")


def site(*masters: LocalMaster) -> dict[str, Any]:
    """Return settings for which the pause is 1.6 s."""
    return {
        "default": {
            "MASTERS": [master.url for master in masters],
            "TTL": 1.0,
            "MAX_TTL": 1.0,
            "MAX_CLOCK_SKEW": 0.1,
            **generous_timeouts(1.0),
            "RESTART_DELAY": 1.6,
        }
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [([0, 1, 2], [0, 1, 3]), ([0], [0, 1, 2]), ([0, 1, 2, 3, 4], [0, 1, 2])],
    ids=["replaced", "grown", "shrunk"],
)
def test_a_reconfiguration_costs_one_pause(
    masters: list[LocalMaster], before: list[int], after: list[int]
) -> None:
    old, new = (site(*(masters[index] for index in one)) for one in (before, after))
    with override_settings(REDLOCK={"default": old["default"], "next": new["default"]}):
        assert run("redlock_init").status == 0
        with ends_lost(), lock("order:1", wait=60) as held:
            assert run("redlock_init", "--using", "next").status == 2
            began = clock()
            ran = run("redlock_init", "--using", "next", "--reconfigure")
            assert ran.out.count("trusted in ") == len(after), ran.said
            with lock("order:1", using="next", wait=60) as other:
                assert clock() > began + 1.5
                assert other.fence > held.fence
        until(lambda: "--reconfigure" in refusal("order:2"), "the other marker is read")
        shown = run("redlock_status", "--format=json")
        assert shown.status == 3
        assert shown.json["counted"] == 0
        codes = {fault["code"] for one in shown.json["masters"] for fault in one["faults"]}
        assert codes <= {"deployment", "conflict"}
        # A majority of the masters granted the lock; the last one may be trusted a moment later.
        until(lambda: run("redlock_status", "--using", "next").status == 0, "all are counted")


@pytest.mark.slow
def test_a_site_that_is_only_asked_for_its_health_gets_ready(masters: list[LocalMaster]) -> None:
    """A load balancer sends the first request that locks only after a good health check."""
    with override_settings(REDLOCK=site(*masters[:3])):
        assert not QuorumHealth.of(master_status()).is_reached
        until(lambda: QuorumHealth.of(master_status()).is_reached, "the masters are trusted")


def test_a_process_that_connects_at_its_start_gets_ready(masters: list[LocalMaster]) -> None:
    urls = [[master.url] for master in masters[:2]]
    aliases = {
        name: {**site()["default"], "MASTERS": url} for name, url in zip("ab", urls, strict=True)
    }
    with override_settings(REDLOCK={**aliases, "default": aliases["a"]}):
        locks.connect()
        for master in masters[:2]:
            with master.client() as client:
                until(lambda: client.exists("redlock:master"), "the marker")


def test_other_names_are_healthy(masters: list[LocalMaster]) -> None:
    with override_settings(REDLOCK=site(*masters[:3])):
        assert run("redlock_init").status == 0
    urls = [master.unix_url for master in masters[:3]]
    with override_settings(REDLOCK={"default": {**site()["default"], "MASTERS": urls}}):
        assert run("redlock_status").status == 0
        assert "already trusted" in run("redlock_init").out


def refusal(resource: str) -> str:
    """Return why a lock that no quorum can grant is refused."""
    with pytest.raises(QuorumUnreachable) as refused:
        lock(resource).acquire()
    return str(refused.value)


def test_a_majority_that_leaves_must_be_named(masters: list[LocalMaster]) -> None:
    a, b, c, *_ = masters
    with override_settings(REDLOCK=site(a, b, c)):
        assert run("redlock_init").status == 0
        with override_settings(REDLOCK=site(a)):
            ran = run("redlock_init", "--reconfigure")
            assert ran.status == 2
            assert "would go on to lock with them" in ran.said
            assert "--removed redis://" in ran.said
            ran = run("redlock_init", "--reconfigure", "--removed", b.url)
            assert ran.out.count("trusted in ") == 1, "one of three is no majority"
        locks.close()
        assert deployment(b).endswith(",closed")
        until(lambda: ",closed" in refusal("order:1"), what="the first ones may be connecting")
        assert run("redlock_init", "--removed", b.url).status == 2
