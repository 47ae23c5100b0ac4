"""Rules of which servers are counted, and what is known of a master and its link."""

from __future__ import annotations

from redlock_django.engine.protocol.commands import Command, Extend
from redlock_django.wire.drivers.sockets import _in_order
from redlock_django.wire.links.master import Master
from redlock_django.wire.links.replies import Replies
from redlock_django.wire.servers import info as server_info
from redlock_django.wire.servers import trust
from tests.engine.mutants.mutant import Mutant
from tests.engine.mutation import (
    instead,
    never,
    returns,
)
from tests.wire import (
    link_schedules,
    test_link,
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "half a command is sent on", "link: closed after an interrupted send", _in_order,
        never("is_running"),
        test_link.test_an_interrupted_send_drops_the_link,
    ),
    Mutant(
        "a refused release is repeated for ever", "link: repeated while its lock may stand",
        Master.due_releases,
        never("until < now"),
        link_schedules.a_release_that_a_master_refuses_for_ever_is_given_up,
    ),
    Mutant(
        "a kept release does not bury", "link: a kept release leaves a tombstone",
        Master.keep_release,
        instead("replace(release, bury=True)", "release"),
        link_schedules.a_release_for_a_lost_link_is_sent_first_and_buries,
    ),
    Mutant(
        "a late master is asked", "link: a late master is sent no acquire", Master.fault,
        never("self.late", nth=1), link_schedules.a_late_master_is_sent_releases_only,
    ),
    Mutant(
        "asked before it is trusted", "trust: no vote before ready-at", Master.fault,
        never("now < self.trust.ready"), link_schedules.a_master_has_no_vote_before_it_is_trusted,
    ),
    Mutant(
        "a promoted replica extends nothing", "trust: a lock that is there goes on",
        Extend.early, returns("False"),
        link_schedules.a_promoted_replica_extends_before_it_is_trusted_and_grants_nothing,
    ),
    Mutant(
        "a promoted replica grants at once", "trust: nothing is granted before it is trusted",
        Command.early, returns("True"),
        link_schedules.a_promoted_replica_extends_before_it_is_trusted_and_grants_nothing,
    ),
    Mutant(
        "a master extends before it is trusted", "trust: early only where one server decides",
        Extend.early, returns("True"),
        link_schedules.a_master_among_several_extends_only_when_it_is_trusted,
    ),
    Mutant(
        "another server is not inspected", "trust: INFO is asked for after a refused marker",
        Replies._handle_vote, never("self._deployment.failover and ..."),
        link_schedules.a_server_behind_a_proxy_that_is_another_one_is_inspected_at_once,
    ),
    Mutant(
        "a mismatch is ignored", "trust: another deployment", trust.read_trust,
        never("status == Status.MISMATCH"),
        link_schedules.a_master_of_another_deployment_is_given_up,
    ),
    Mutant(
        "a copy has the run of its server", "safe servers: a copy is another run",
        server_info.run_of,
        instead("info.get('master_replid', '')", "''"),
        link_schedules.an_old_copy_by_replication_on_a_live_link_is_noticed,
    ),
    Mutant(
        "evicted keys are forgotten", "safe servers: evictions end a run", server_info.run_of,
        never("evicted.isdecimal()"),
        link_schedules.keys_that_were_evicted_are_noticed_after_the_policy_is_back,
    ),
    Mutant(
        "tolerated evictions count", "safe servers: evictions may be tolerated",
        server_info.run_of, never("may_evict(info)"),
        link_schedules.keys_that_were_evicted_are_noticed_after_the_policy_is_back,
    ),
    Mutant(
        "replicas vote", "safe servers: no replica", server_info.faults,
        never("info.get('role', 'master') != ..."), link_schedules.an_unsafe_server_is_not_counted,
    ),
    Mutant(
        "evicting servers vote", "safe servers: no eviction", server_info.faults,
        never("may_evict(info)"), link_schedules.an_unsafe_server_is_not_counted,
    ),
    Mutant(
        "cluster nodes vote", "safe servers: no cluster node", server_info.faults,
        never("info.get('cluster_enabled', ...) == ..."),
        link_schedules.an_unsafe_server_is_not_counted,
    ),
)  # fmt: skip
