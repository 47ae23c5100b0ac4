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
        self._type_of = lua51.lua_type
        self._functions: dict[str, Any] = {}  # a script, compiled, by its text
        self._keyspace: Keyspace | None = None  # of the running script
        self._lua.globals()[b"struct"] = self._table({b"pack": _pack, b"unpack": _unpack})
        self._lua.globals()[b"redis"] = self._table({b"call": self._call, b"pcall": self._pcall})

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
                reply = function(self._table(keys), self._table(argv))
            finally:
                self._keyspace = outer
                keyspace.began = 0
            if self._type_of(reply) != "table":
                return _reply(reply)
            if error := reply[b"err"]:
                raise ServerError(error.decode())
            return [_reply(item) for item in reply.values()]

    def _call(self, name: bytes, *args: Any) -> Any:
        answer = COMMANDS[name](self._keyspace, *args)
        return self._table(answer) if type(answer) is list else answer

    def _pcall(self, name: bytes, *args: Any) -> Any:
        try:
            return self._call(name, *args)
        except ServerError as error:
            return self._table({b"err": str(error).encode()})


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
