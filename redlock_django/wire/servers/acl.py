"""The ACL rights that a user needs on a master, and the message for an error of the ACL."""

from __future__ import annotations

import re

LOCKS = (
    "eval", "evalsha", "script|load", "info", "time", "get", "mget", "set", "del", "pexpire",
    "pttl", "zadd", "zrem", "zrangebyscore",
)  # fmt: skip
"""The commands that locks need."""

WAITING = ("zrange", "zrank", "publish", "subscribe")
"""The commands by which masters call waiters; without them waiters poll."""

LOOKING = ("zcount", "scan")
"""The commands for inspecting locks and setting masters up, in addition to LOCKS."""

_COMMAND = re.compile(r"'([a-z|-]+)' command")


def least_acl(prefix: str, *, looking: bool = False) -> str:
    """Return the least rights that work, as ACL SETUSER takes them after user and password."""
    commands = LOCKS + WAITING + (LOOKING if looking else ())
    granted = " ".join(f"+{command}" for command in commands)
    return f"~{prefix}:* &{prefix}:wake:* -@all {granted}"


def forbidden(reply: str) -> str:
    """Return the message for what an ACL forbids by an error reply; "" if it is another error."""
    # Inside a script the error is not NOPERM, and every server words it differently.
    in_script = "ACL failure" in reply or "The user executing the script" in reply
    if not (reply.startswith("NOPERM") or in_script):
        return ""
    if command := _COMMAND.search(reply):
        return f"its ACL forbids {command[1]!r}"
    return f"its ACL forbids {'its keys' if 'key' in reply else 'a command'}"
