"""The bytes that redlock_django sends to acquire and release a lock, packed by its own code.

They are the same for all masters but for the marker; tests/test_hot_pairs.py compares them with
what a real client sends. For comparison, those of SET NX PX and compare-and-delete.
"""

from __future__ import annotations

import time
from hashlib import sha1
from typing import Any

from benchmarks.contenders import TTL
from redlock_django.engine.protocol.commands import Acquire, Release, script
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.wire.links.resp import pack, pack_command, pack_parts

DEPLOYMENT = Deployment(names=("a", "b", "c", "d", "e"), restart_delay=0)
HOLDER = '{"host":"web-1","pid":12345,"app":"gunicorn","at":1790000000.123}'
READY = 1_500_000_000_000_000
"""The time in µs from which the masters are trusted."""

MARKER = f"{'f' * 40} {READY} {DEPLOYMENT.fingerprint}"
FREE = b"if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0"
SHA = sha1(FREE, usedforsecurity=False).hexdigest()

TRUST = (
    pack("SET", DEPLOYMENT.marker, MARKER),
    *(
        pack("SCRIPT", "LOAD", source)
        for source in (script("acquire", DEPLOYMENT)[0], script("release", DEPLOYMENT)[0], FREE)
    ),
)
"""Commands that store what the others need on an emptied master."""


def pair(resource: str, token: str) -> tuple[bytes, bytes]:
    """Return the bytes that acquire and release a lock."""
    about: dict[str, Any] = {
        "deployment": DEPLOYMENT,
        "resources": (resource,),
        "value": f"{token} {HOLDER}",
    }
    acquire = Acquire(**about, ttl=TTL, proposal=time.time_ns() // 1000)
    trusted = pack_parts(MARKER, READY)
    return pack_command(acquire, 3) + trusted, pack_command(Release(**about), 4)


def plain_pair(resource: str, token: str) -> tuple[bytes, bytes]:
    """Return the bytes of SET NX PX and of compare-and-delete."""
    acquire = pack("SET", resource, token, "NX", "PX", TTL * 1000)
    return acquire, pack("EVALSHA", SHA, 1, resource, token)
