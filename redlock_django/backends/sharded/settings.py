"""The settings of several shards: one section of REDLOCK becomes one section for each shard."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redlock_django.backends.base import Section, StoreSettings
from redlock_django.engine.protocol.shard_choice import identity


def split(section: Section) -> list[Section]:
    """Return a section for each shard: one for each list in MASTERS, or the section itself.

    Raises ValueError if MASTERS has lists next to URLs, or lists of different lengths.
    """
    masters = section["MASTERS"]
    entries = masters if isinstance(masters, list | tuple) else ()
    kinds = {isinstance(entry, list | tuple) for entry in entries}
    if True not in kinds:
        return [section]
    if False in kinds:
        raise ValueError("MASTERS must be a list of URLs or a list of groups (lists), not both")
    sizes = [len(shard) for shard in entries]
    for number, size in enumerate(sizes, 1):
        if not size:
            raise ValueError(f"MASTERS: group {number} is empty")
        if size != sizes[0]:
            raise ValueError(
                f"MASTERS: group 1 has {sizes[0]} masters and group {number} has {size}: all "
                "groups must have the same number, so that all resources are equally safe"
            )
    return [{**section, "MASTERS": shard} for shard in entries]


def places(masters: object) -> Iterator[tuple[str, Any]]:
    """Yield every entry of MASTERS with its position, even where `split` would raise."""
    if isinstance(masters, str):
        masters = masters.split(",")
    for index, entry in enumerate(masters if isinstance(masters, list | tuple) else ()):
        if isinstance(entry, list | tuple):
            yield from ((place(n, _label(index)), url) for n, url in enumerate(entry))
        else:
            yield place(index, ""), entry


def _label(index: int) -> str:
    return f"group {index + 1}"


@dataclass(frozen=True, kw_only=True)
class ShardedSettings(StoreSettings):
    """The settings of all shards."""

    shards: tuple[StoreSettings, ...]

    @classmethod
    def of_shards(
        cls, settings_class: type[StoreSettings], sections: Sequence[Section]
    ) -> ShardedSettings:
        """Return the settings of several shards of one kind, from their sections."""
        shards = [
            settings_class.read(one, label=_label(index)) for index, one in enumerate(sections)
        ]
        refuse_twins(
            (place(index, shard.label), name, endpoint)
            for shard in shards
            for index, (name, endpoint) in enumerate(shard.servers)
        )
        # Clients with other shards store the same resource on other masters: the fingerprint of
        # the deployment, which each master's marker has, must differ.
        members = identity(shard.identity for shard in shards)
        return cls(
            max_ttl=shards[0].max_ttl,
            tolerate=shards[0].tolerate,
            shards=tuple(
                replace(shard, members=members, shard_count=len(shards)) for shard in shards
            ),
        )

    @property
    def stores(self) -> tuple[StoreSettings, ...]:
        return self.shards

    @property
    def servers(self) -> tuple[tuple[str, Hashable], ...]:
        return tuple(server for shard in self.shards for server in shard.servers)

    def check_ttl(self, ttl: float, name: str) -> None:
        for shard in self.shards:
            shard.check_ttl(ttl, name)


def place(index: int, label: str) -> str:
    """Return the position of an entry of MASTERS for a message, counted from 1."""
    return f"{label}, master {index + 1}" if label else f"master {index + 1}"


def refuse_twins(servers: Iterable[tuple[str, str, Hashable]]) -> None:
    """Raise ValueError if two servers (position, name, endpoint) are one."""
    seen: dict[Hashable, tuple[str, str]] = {}
    for where, name, endpoint in servers:
        if endpoint in seen:
            other, other_name = seen[endpoint]
            raise ValueError(
                f"MASTERS: {_both(other, where)} are one server ({other_name} and {name}); every "
                "master must be a server of its own"
            )
        seen[endpoint] = (where, name)


def _both(one: str, other: str) -> str:
    if one.startswith("master "):
        return f"masters {one.removeprefix('master ')} and {other.removeprefix('master ')}"
    return f"{one} and {other}"
