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
from redlock_django.engine.protocol import commands

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
        self._functions: dict[str, Any] = {}
        self._keyspace: Keyspace | None = None  # of the running script
        names = self._lua.globals()
        names[b"redis"] = self._table({b"call": self._call, b"pcall": self._pcall})
        names[b"struct"] = self._table({b"pack": _pack, b"unpack": _unpack})

    def run(
        self, name: str, keyspace: Keyspace, keys: Sequence[bytes], argv: Sequence[bytes]
    ) -> Any:
        """Return the reply of a script."""
        with self.alone:
            text = commands.script(name)[0]
            function = self._functions.get(text)
            if function is None:
                compiled = f"return function(KEYS, ARGV) {text}\nend"
                function = self._functions[text] = self._lua.execute(compiled.encode())
            outer, self._keyspace = self._keyspace, keyspace
            keyspace.began = keyspace.time()
            try:
                return _reply(function(self._table(keys), self._table(argv)))
            finally:
                self._keyspace = outer
                keyspace.began = 0

    def _call(self, name: bytes, *args: Any) -> Any:
        given = [arg if type(arg) is bytes else b"%.17g" % arg for arg in args]
        return self._to_lua(COMMANDS[name](self._keyspace, *given))

    def _pcall(self, name: bytes, *args: Any) -> Any:
        try:
            return self._call(name, *args)
        except ServerError as error:
            return self._table({b"err": str(error).encode()})

    def _to_lua(self, answer: Any) -> Any:
        if type(answer) is list:
            return self._table([self._to_lua(one) for one in answer])
        return False if answer is None else answer


@cache
def interpreter() -> Interpreter:
    """Return the interpreter of this process."""
    return Interpreter()


def _reply(answer: Any) -> Any:
    """Return what a server replies for a value of Lua."""
    if type(answer) is bytes:
        return answer
    if type(answer) in (int, float):
        return int(answer)
    if (error := answer[b"err"]) is not None:
        raise ServerError(error.decode())
    found: list[Any] = []
    while (one := answer[len(found) + 1]) is not None:
        found.append(None if one is False else one if type(one) is bytes else int(one))
    return found


@cache
def _struct(form: bytes) -> struct.Struct:
    """Return the format of Lua's struct in Python: the scripts use d, i8 and c32."""
    parts = form.decode().removeprefix("<").replace("i8", "q").replace("c32", "32s")
    return struct.Struct(f"<{parts}")


def _pack(form: bytes, *values: Any) -> bytes:
    return _struct(form).pack(*(v if type(v) is bytes else int(v) for v in values))


def _unpack(form: bytes, data: bytes) -> tuple[Any, ...]:
    return _struct(form).unpack(data)
