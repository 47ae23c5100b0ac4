"""What a user of a master must be allowed to do, and what an error says is forbidden."""

from __future__ import annotations

import re

from redis.exceptions import NoPermissionError

LOCKS = (
    "eval", "evalsha", "script|load", "info", "time", "get", "mget", "set", "del", "pexpire",
    "pttl", "zadd", "zrem", "zrangebyscore",
)  # fmt: skip
"""The commands that locks need."""

WAITING = ("zrange", "zrank", "publish", "subscribe")
"""The commands by which who waits is called; without them waiters ask from time to time."""

LOOKING = ("zcard", "zcount", "zrevrangebyscore", "zscan", "scan")
"""The commands that people need besides, who look at locks and set masters up."""

_COMMAND = re.compile(r"'([a-z|-]+)' command")


def least_acl(prefix: str, *, looking: bool = False) -> str:
    """Give the least rights that work, as ACL SETUSER takes them behind user and password."""
    commands = LOCKS + WAITING + (LOOKING if looking else ())
    granted = " ".join(f"+{command}" for command in commands)
    return f"~{prefix}:* &{prefix}:wake:* -@all {granted}"


def forbidden(error: Exception) -> str:
    """Say what an ACL forbids by this error; "" where it is none of an ACL."""
    text = str(error)
    # Inside of a script it is no NOPERM, and every server has words of its own.
    in_script = "ACL failure" in text or "The user executing the script" in text
    if not (isinstance(error, NoPermissionError) or in_script):
        return ""
    if command := _COMMAND.search(text):
        return f"its ACL forbids {command[1]!r}"
    return f"its ACL forbids {'its keys' if 'key' in text else 'a command'}"
