"""A query: what is asked of a master on a connection of its own, never on the links of locks.

A query is one Lua script of `lua/`, its KEYS, its ARGV, and a method that reads the reply.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from redlock_django.engine.protocol.commands import script
from redlock_django.engine.protocol.deployment import Deployment

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query(ABC, Generic[Answer]):
    """One query to one master. `name` is its script."""

    name: ClassVar[str]

    deployment: Deployment

    @abstractmethod
    def keys(self) -> list[str]:
        """Return the KEYS of the script."""

    def arguments(self) -> list[str | int | bytes]:
        """Return the ARGV of the script, without the round's number."""
        return []

    def call(self, *, text: bool = False) -> tuple[str | int | bytes, ...]:
        """Return the words that run the script: EVALSHA, or EVAL with its `text`."""
        keys, (source, sha) = self.keys(), script(self.name, self.deployment)
        run = ("EVAL", source) if text else ("EVALSHA", sha)
        return (*run, len(keys), *keys, 0, *self.arguments())

    @abstractmethod
    def read(self, reply: Any) -> Answer:
        """Return the answer that a reply contains: a string, or an array that begins with one.

        Raises ValueError, TypeError or struct.error if no script has written it.
        """


class SendQuery(Protocol):
    """A function that sends a query to one master and returns its answer."""

    def __call__(self, query: Query[Answer], /) -> Answer: ...
