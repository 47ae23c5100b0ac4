"""The configuration: which operation may be sent, by whom, and what the service states."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

NEW = "{new}"
"""Stands for a value that no earlier operation had, in a path or a body."""


class BadConfig(ValueError):
    """The configuration or the URL is not valid; the message names the key at fault."""


@dataclass(frozen=True)
class Operation:
    """One request that the service may be sent, without its key."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: str


@dataclass(frozen=True)
class Config:
    """The content of a TOML file. Everything but `operation` has a default; times are in seconds.

    `other` is the operation with another body, `error` one that is answered by a 4xx, `slow` one
    that takes a second or longer, `stream` one whose response is streamed; None: there is none.
    """

    operation: Operation
    other: Operation | None = None
    error: Operation | None = None
    slow: Operation | None = None
    stream: Operation | None = None
    success: Sequence[int] = (200, 201, 202, 204)
    values: Sequence[str] = ()
    header: str = "Idempotency-Key"
    quoted: bool = True
    required: bool = False
    expires_after: float | None = None
    timeout: float = 30.0
    rate: float = 20.0
    requests: int = 200
    together: int = 5
    same_headers: Sequence[str] = ("Content-Type", "Location")
    users: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: {"first": {}})
    open: str = ""
    effects: Mapping[str, str] = field(default_factory=dict)
    differs: Mapping[str, str] = field(default_factory=dict)


# The keys of each table, with the types of their values.
_REQUEST: dict[str, type] = {"method": str, "path": str, "headers": dict, "body": str}
_TABLES: dict[str, dict[str, Any]] = {
    "operation": {**_REQUEST, "success": list, "values": list, "same_headers": list},
    **dict.fromkeys(("other", "error", "slow", "stream"), _REQUEST),
    "key": {"header": str, "quoted": bool, "required": bool, "expires_after": (int, float)},
    "limits": {
        "timeout": (int, float), "rate": (int, float), "requests": int, "together": int,
    },
    "session": {"open": str},
    "users": {"first": dict, "second": dict},
    "effects": {"path": str, "json": str},
    "differs": {},
}  # fmt: skip


def read(path: Path, rules: Sequence[str]) -> Config:
    """Return the configuration in a TOML file. `rules` are the names that `differs` may have.

    Raises BadConfig.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: not TOML: {error}") from None
    return parse(document, rules)


def parse(document: Mapping[str, Any], rules: Sequence[str]) -> Config:
    """Return the configuration in a parsed document. Raises BadConfig."""
    for table, found in document.items():
        if table not in _TABLES:
            raise BadConfig(f"[{table}] is not known; known are {', '.join(sorted(_TABLES))}")
        if not isinstance(found, dict):
            raise BadConfig(f"{table} must be a table: [{table}]")
        known = dict.fromkeys(rules, str) if table == "differs" else _TABLES[table]
        for key, value in found.items():
            _check(f"[{table}] {key}", key, value, known)
    operation = document.get("operation", {})
    if "path" not in operation:
        raise BadConfig("[operation] path is missing: the one request that may write")
    base = {"method": "POST", "headers": {}, "body": "", **_only(operation, _REQUEST)}
    given: dict[str, Any] = {
        **_only(operation, ("success", "values", "same_headers")),
        **document.get("key", {}),
        **document.get("limits", {}),
        **document.get("session", {}),
        **_only(document, ("users", "effects", "differs")),
        **{
            name: _operation(name, {**base, **document[name]})
            for name in ("other", "error", "slow", "stream")
            if name in document
        },
    }
    config = Config(_operation("operation", base), **given)
    _check_values(config)
    return config


def _only(table: Mapping[str, Any], names: Any) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key in names}


def _check(where: str, key: str, value: Any, known: Mapping[str, Any]) -> None:
    if key not in known:
        raise BadConfig(f"{where} is not known; known are {', '.join(sorted(known))}")
    wanted = known[key]
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        names = [one.__name__ for one in (wanted if isinstance(wanted, tuple) else (wanted,))]
        raise BadConfig(f"{where} must be of type {' or '.join(names)}, got {value!r}")
    if key == "success" and not all(type(one) is int for one in value):
        raise BadConfig(f"{where} must be a list of numbers, got {value!r}")
    if wanted is dict and not all(isinstance(one, str | int) for one in value.values()):
        raise BadConfig(f"{where} must be the names of headers, each with a string")


def _operation(name: str, table: Mapping[str, Any]) -> Operation:
    _check_path(f"[{name}] path", table["path"])
    return Operation(**{one.name: table[one.name] for one in fields(Operation)})


def _check_path(where: str, path: str) -> None:
    if not path.startswith("/") or path.startswith("//"):
        raise BadConfig(
            f"{where} must begin with one slash, got {path!r}: requests go to one host only"
        )


def _check_values(config: Config) -> None:
    for name in ("timeout", "rate", "requests"):
        if getattr(config, name) <= 0:
            raise BadConfig(f"[limits] {name} must be positive, got {getattr(config, name)!r}")
    if not 2 <= config.together <= 50:
        raise BadConfig(f"[limits] together must be 2 to 50, got {config.together}")
    if "first" not in config.users:
        raise BadConfig("[users] first is missing")
    if config.effects and config.effects.keys() != {"path", "json"}:
        raise BadConfig("[effects] needs path and json")
    _check_path("[session] open", config.open or "/")
    _check_path("[effects] path", config.effects.get("path", "/"))
