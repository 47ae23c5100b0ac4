"""The arguments of `lock()`, checked and resolved; the description of the holder."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Mapping
from datetime import timedelta
from functools import cache

from redlock_django.backends.base import BaseBackend
from redlock_django.backends.values import (
    LONGEST_WAIT,
    duration,
    flag,
    minimum_hold,
    permits,
)
from redlock_django.engine.protocol.slots import SUFFIX
from redlock_django.engine.validity import with_drift
from redlock_django.exceptions import BadName, BadResource, InvalidRedlock
from redlock_django.locking import thread_state
from redlock_django.locking.names import MAX_BYTES, check_resource, is_plain
from redlock_django.locking.services import LockService, locks
from redlock_django.wire.clock import wall_ns

_HOST = socket.gethostname()[:64]
_APP = os.path.basename(sys.argv[0] if sys.argv else "")[:64]
_quoted = json.encoder.encode_basestring_ascii
"""Return a string in JSON, as `json.dumps` does, in a third of the time."""


@cache
def _process_json(release: str) -> str:
    """Return the JSON about this process, which is the same for all its locks, without the "}".

    `release` is the setting RELEASE: which version of the site's code the process runs.
    """
    about = {"host": _HOST, "pid": os.getpid(), "app": _APP}
    if release:
        about["release"] = release
    return json.dumps(about, separators=(",", ":"))[:-1]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process_json.cache_clear)


def _checked_wait(wait: float | timedelta) -> float:
    return duration(wait, "wait", least=0, most=LONGEST_WAIT)


class LockArguments:
    """The arguments of `lock()`, which describes them, checked.

    Raises BadName for a name that is not valid, BadResource for too many resources, ValueError for
    a bad duration, InvalidRedlock for wrong settings and for a limit of several names.
    """

    limit = 1
    """How many clients may hold the name at once, each one slot of it."""
    min_hold = 0.0
    """The least number of seconds from the acquisition to the end of the lock."""
    is_leader = False
    """True if the lock is renewed for as long as its holder leads: MAX_HOLD does not apply."""
    _resolved: tuple[LockService, float, float]
    _resolved_for: LockService | None = None

    def __init__(
        self,
        resources: tuple[str, ...],
        using: str,
        ttl: float | timedelta | None,
        wait: float | timedelta | None,
        renew: bool | None,
        reentrant: bool,
        until_commit: bool,
        min_hold: float | timedelta | None,
        holder: Mapping[str, str] | None,
        limit: int | None,
    ) -> None:
        self.resources: tuple[str, ...]
        self.in_order: tuple[str, ...]
        """The resources as they are acquired: in an order that is the same for all clients."""
        if len(resources) == 1 and type(resources[0]) is str and is_plain(resources[0]):
            self.resources = self.in_order = resources  # as nearly always, and in half the time
        else:
            try:
                self.resources = tuple(map(check_resource, resources))
            except BadResource as error:
                raise BadName(str(error), resource=error.resource) from None
            self.in_order = tuple(sorted(self.resources))
        if len(resources) != 1:
            self._check_several(locks[using].backend.max_resources)
        self.using = using
        self._ttl = ttl
        self._wait = None if wait is None else _checked_wait(wait)
        self.renew = renew
        self.reentrant = reentrant
        self.until_commit = until_commit
        if until_commit is not True:
            flag({"until_commit": until_commit}, "until_commit")
        if min_hold is not None:
            self.min_hold = minimum_hold(min_hold, ttl)
            self._check_min_hold()
        if limit is not None:
            self.limit = permits(limit, "limit")
        self.holder: Mapping[str, str] = dict(holder) if holder else {}
        self.resolve()  # a bad duration is an error here, not at the first acquire()
        if limit is not None and limit > 1:
            self._check_limit(self._resolved[0].backend)

    def _check_several(self, most: int) -> None:
        if not 1 <= len(self.resources) <= most:
            raise BadResource(f"a lock needs 1 to {most} resources, got {len(self.resources)}")
        if len(set(self.resources)) < len(self.resources):
            raise BadResource("a resource is named twice in one lock", resource=self.names)

    def _check_limit(self, backend: BaseBackend) -> None:
        if len(self.resources) > 1:
            raise InvalidRedlock(
                f"limit={self.limit} needs one name, got {len(self.resources)}: acquire each in a "
                "lock() of its own"
            )
        if (size := len(self.resources[0].encode())) > MAX_BYTES - SUFFIX:
            raise BadName(
                f"the resource name has {size} bytes, at most "
                f"{MAX_BYTES - SUFFIX} are allowed with a limit; resource() shortens a long name "
                "with a hash",
                resource=self.names,
            )
        if not backend.has_permits:
            raise InvalidRedlock(
                f"REDLOCK[{self.using!r}]: its BACKEND has no permits, so a name has one holder. "
                "Leave limit out, or use another alias"
            )

    def _check_min_hold(self) -> None:
        if self.min_hold and not locks[self.using].backend.keeps_min_hold:
            raise InvalidRedlock(
                f"REDLOCK[{self.using!r}]: its BACKEND cannot hold a lock after its release, which "
                "min_hold needs. Leave min_hold out, or use another alias"
            )

    def resolve(self) -> tuple[LockService, float, float]:
        """Return the service of the alias, the TTL and the wait in seconds."""
        if threading.get_ident is not thread_state.get_ident:
            thread_state.follow_patches()
        service = locks.services.get(self.using) or locks[self.using]  # a method call less
        if self._resolved_for is service:
            return self._resolved
        settings = service.settings
        ttl = settings.ttl if self._ttl is None else settings.check_ttl(self._ttl)
        wait = settings.wait if self._wait is None else self._wait
        if self.min_hold and ttl < (least := with_drift(self.min_hold)):
            settings.store.check_ttl(least, "min_hold with drift")
            ttl = least
        if ttl > settings.max_hold:
            raise ValueError(
                f"ttl is {ttl:g} s and MAX_HOLD is {settings.max_hold:g} s: "
                "lower ttl or raise MAX_HOLD"
            )
        self._resolved = resolved = service, ttl, wait
        self._resolved_for = service
        return resolved

    def keep_for(self, min_hold: float) -> None:
        """Keep the minimum hold of a giver, of which so much was left, and the TTL must suffice."""
        self.min_hold, self._resolved_for = min_hold, None

    def set_wait(self, seconds: float) -> None:
        """Replace the wait. Raises ValueError for a bad duration."""
        self._wait, self._resolved_for = _checked_wait(seconds), None

    def holder_json(self, handed_on: float | None = None) -> str:
        """Return compact JSON about the holder: this process, the time since 1970, and `holder`.

        Values of `holder` are cut to 200 characters. `handed_on` is what is left of the minimum
        hold of a lock that is handed on, in seconds.
        """
        min_hold = self.min_hold if handed_on is None else handed_on
        about = f'{_process_json(self._resolved[0].settings.release)},"at":{wall_ns() / 1e9:.3f}'
        if handed_on is not None:
            about += ',"handed_on":1'
        if min_hold:
            about += f',"min_hold":{min_hold:.3f}'
        if self.limit > 1:
            about += f',"limit":{self.limit}'
        if self.is_leader:
            about += ',"leader":1'
        # JSON allows a name twice, and readers take the last: `holder` may replace what is above.
        for key, value in self.holder.items():
            about += f",{_quoted(str(key))}:{_quoted(str(value)[:200])}"
        return about + "}"

    @property
    def names(self) -> str:
        """The resources, for a message."""
        return ", ".join(self.resources)
