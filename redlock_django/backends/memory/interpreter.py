"""The scripts of `engine/protocol/lua`, in one Lua interpreter for all masters of a process."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from redlock_django.backends.memory.commands import COMMANDS, ServerError
from redlock_django.backends.memory.keyspace import Keyspace

NO_LUPA = (
    "The store in memory (memory_masters(), MemoryBackend) is for tests. It runs the Lua scripts "
    'of masters by lupa, which is not installed: pip install "redlock-django[test]"'
)


# Between Python and Lua, a value goes after its kind, and an array as its items: Python takes
# longer to make or read a table. Lua takes 8,000 items at most, so a long array is a table.
VALUE, ARRAY, TABLE, ERROR = b"value", b"array", b"table", b"error"
MOST_ITEMS = 5000
# Is given the commands and defines `redis` for the scripts. Returns the function that calls a
# script with its KEYS, of which there are `count`, and its ARGV.
CALLS = b"""
local call, pcall, most = ...

local function from_python(kind, ...)
  if kind == 'value' then
    return ...
  end
  return kind == 'array' and { ... } or { err = ... }
end

local function to_python(reply)
  if type(reply) ~= 'table' then
    return 'value', reply
  elseif reply.err then
    return 'error', reply.err
  elseif #reply > most then
    return 'table', reply
  end
  return 'array', unpack(reply)
end

redis = {
  call = function(...) return from_python(call(...)) end,
  pcall = function(...) return from_python(pcall(...)) end,
}

return function(script, count, ...)
  return to_python(script({ unpack({ ... }, 1, count) }, { select(count + 1, ...) }))
end
"""


class Interpreter:
    """One Lua interpreter: as in a server, one script runs at a time."""

    def __init__(self) -> None:
        try:
            from lupa import lua51
        except ImportError as missing:
            raise ImproperlyConfigured(NO_LUPA) from missing
        self.alone = threading.RLock()
        self._lua = lua51.LuaRuntime(
            encoding=None, unpack_returned_tuples=True, register_eval=False
        )
        self._table = self._lua.table_from
        self._functions: dict[str, Any] = {}  # a script, compiled, by its text
        self._keyspace: Keyspace | None = None  # of the running script
        packing = self._table({b"pack": _pack, b"unpack": _unpack})
        self._lua.globals()[b"struct"] = packing
        self._run = self._lua.execute(CALLS, self._call, self._pcall, MOST_ITEMS)

    def run(
        self, text: str, keyspace: Keyspace, keys: Sequence[bytes], argv: Sequence[bytes]
    ) -> Any:
        """Return the reply of a script."""
        with self.alone:
            function = self._functions.get(text)
            if function is None:
                compiled = f"return function(KEYS, ARGV) {text}\nend"
                function = self._functions[text] = self._lua.execute(compiled.encode())
            outer, self._keyspace = self._keyspace, keyspace
            keyspace.began = keyspace.time()
            try:
                kind, *items = self._run(function, len(keys), *keys, *argv)
            finally:
                self._keyspace = outer
                keyspace.began = 0
        if kind == ERROR:
            raise ServerError(items[0].decode())
        if kind == TABLE:
            items = list(items[0].values())
        reply = [_reply(item) for item in items]
        return reply[0] if kind == VALUE else reply

    def _call(self, name: bytes, *args: Any) -> tuple[Any, ...]:
        answer = COMMANDS[name](self._keyspace, *args)
        if type(answer) is list:
            return (ARRAY, *answer) if len(answer) <= MOST_ITEMS else (VALUE, self._table(answer))
        return VALUE, answer

    def _pcall(self, name: bytes, *args: Any) -> tuple[Any, ...]:
        try:
            return self._call(name, *args)
        except ServerError as error:
            return ERROR, str(error).encode()


@cache
def interpreter() -> Interpreter:
    """Return the interpreter of this process."""
    return Interpreter()


def _reply(item: Any) -> bytes | int | None:
    """Return what a server replies for a value of Lua."""
    if type(item) is float:
        return int(item)
    return None if item is False else item


@cache
def _struct(form: bytes) -> struct.Struct:
    """Return the format of Lua's struct in Python: the scripts use d, i8 and c32."""
    parts = form.decode().removeprefix("<").replace("i8", "q").replace("c32", "32s")
    return struct.Struct(f"<{parts}")


def _pack(form: bytes, *values: Any) -> bytes:
    return _struct(form).pack(*[v if type(v) is bytes else int(v) for v in values])


def _unpack(form: bytes, data: bytes) -> tuple[Any, ...]:
    return _struct(form).unpack(data)
