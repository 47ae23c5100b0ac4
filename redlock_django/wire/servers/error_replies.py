"""The error replies of servers, in words: what is wrong, and what to do.

Nothing else of a reply is shown: its text differs between servers, and may hold secrets.
"""

from __future__ import annotations

import re

from redlock_django.wire.servers.acl import LOCKS, LOOKING, WAITING, forbidden

_CLUSTER = "it is a cluster node: Redlock needs independent masters"
_KEYS = "another program writes to keys that begin with KEY_PREFIX"

_CODES = {
    "ASK": _CLUSTER,
    "BUSY": "a script of another client keeps it busy",
    "CLUSTERDOWN": _CLUSTER,
    "CROSSSLOT": _CLUSTER,
    "DENIED": "its protected-mode refuses other machines: set a password for it, and in OPTIONS",
    "LOADING": "it is still loading its data",
    "MASTERDOWN": "it is a replica, and has lost its master",
    "MISCONF": "it cannot save its data: see its log",
    "MOVED": _CLUSTER,
    "NOREPLICAS": "too few replicas follow it for its min-replicas-to-write",
    "OOM": "its memory is full: raise its maxmemory, or give locks a server of their own",
    "READONLY": "it is a replica",
    "TRYAGAIN": _CLUSTER,
    "WRONGTYPE": f"a key has another type: {_KEYS}",
}
"""The meaning of an error, by its code."""

_TEXTS = {
    "db index": "has no database with this number: see its setting 'databases'",
    "not allowed in cluster mode": f"refuses a database: {_CLUSTER}",
    "without any password configured": "has no password, but OPTIONS or its URL has one",
    "no password is set": "has no password, but OPTIONS or its URL has one",
    "authentication required": "needs a password: set one in OPTIONS",
    "wrongpass": "refused the password",
}
"""The meaning of an error without a code, by a part of its text in lower case."""

_STRIPPED = {
    "OutOfMemoryError": "OOM",
    "BusyLoadingError": "LOADING",
    "ReadOnlyError": "READONLY",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "TryAgainError": "TRYAGAIN",
    "ClusterDownError": "CLUSTERDOWN",
    "ClusterCrossSlotError": "CROSSSLOT",
    "MasterDownError": "MASTERDOWN",
    "NoPermissionError": "NOPERM",
    "NoScriptError": "NOSCRIPT",
    "AuthenticationError": "WRONGPASS",  # or another error of AUTH, which says so
}
"""The codes that redis-py removes from the text of an error, by the class that it raises."""

_UNKNOWN = re.compile(r"unknown (?:redis |valkey )?command(?: [`'](\w+))?", re.IGNORECASE)
_COMMANDS = {name.partition("|")[0] for name in (*LOCKS, *WAITING, *LOOKING)}


def reply_text(error: Exception) -> str:
    """Return an error reply that redis-py has raised as the server has sent it."""
    for cls in type(error).__mro__:
        if code := _STRIPPED.get(cls.__name__):
            return f"{code} {error}"
    return str(error)


def code_of(reply: str) -> str:
    """Return the code of an error reply, "ERR" if it has none."""
    if (first := re.match(r"([A-Z]{3,20})(?: |$)", reply)) and first[1] != "ERR":
        return first[1]
    # Old servers put the code of an error inside a script in the middle: "ERR Error running script
    # (call to f_1): @user_script:1: -OOM command not allowed …"
    inside = (code for code in re.findall(r" -([A-Z]+) ", reply) if code in _CODES)
    return next(inside, "ERR")


def is_unknown_command(reply: str) -> bool:
    """Return whether an error reply says that the server does not know a command."""
    return _UNKNOWN.search(reply) is not None


def explain(reply: str) -> str:
    """Return what an error reply means, as the rest of a sentence about the server."""
    if denied := forbidden(reply):
        return f"{denied} (docs/reference/acl.md has the rights it needs)"
    if unknown := _UNKNOWN.search(reply):
        name = (unknown[1] or "").lower()
        command = f"the command {name.upper()}" if name in _COMMANDS else "a command"
        return f"does not know {command}: is it renamed there (rename-command), or behind a proxy?"
    lowered = reply.lower()
    if known := next((said for part, said in _TEXTS.items() if part in lowered), ""):
        return known
    code = code_of(reply)
    meaning = _CODES.get(code, "see its log" if code == "ERR" else "")
    return f"answered {code}{f' ({meaning})' if meaning else ''}"
