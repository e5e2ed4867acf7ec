"""Terminals in memory: a line is echoed and edited as a kernel does it, and then the program may read it."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from sandlot.fakes.calls import FakeCall, Program, Running
from sandlot.fakes.shell import Shell
from sandlot.fakes.tree import Tree
from sandlot.model import SessionSpec, Stream, TerminalSize

_SHELLS = ("sh", "bash", "dash")
_INTERRUPT, _END, _DELETE = 0x03, 0x04, (0x08, 0x7F)
_SIGINT = 2
_PIECE_BYTES = 4096


class FakeTty:
    def __init__(self, call: FakeCall, size: TerminalSize, window_bytes: int) -> None:
        self.call = call
        self.size = size
        self.window_bytes = window_bytes
        self.kept = bytearray()  # the newest of what was printed
        self.end = 0
        self._line = bytearray()
        self._front: asyncio.Task[int] | None = None

    @property
    def kept_from(self) -> int:
        return self.end - len(self.kept)

    async def write(self, stream: Stream, data: bytes) -> None:
        """For the program: both of its streams are this terminal."""
        del stream
        await self._print(data.replace(b"\n", b"\r\n"))

    async def _print(self, data: bytes) -> None:
        if data:
            await self.call.gate.wait()
            self.kept += data
            self.end += len(data)
            del self.kept[: max(0, len(self.kept) - self.window_bytes)]
            await self.call.write(Stream.STDOUT, data)

    async def type(self, data: bytes) -> None:
        """Waits while the program takes nothing."""
        for start in range(0, len(data), _PIECE_BYTES):
            await self.call.room()
            if self.call.is_over:
                return
            await self._edit(data[start : start + _PIECE_BYTES])

    async def _edit(self, data: bytes) -> None:
        echo = bytearray()
        for key in data:
            if key == _INTERRUPT:
                await self._print(bytes(echo) + b"^C")
                echo.clear()
                self._line.clear()
                self._interrupt()
            elif key in _DELETE:
                echo += b"\b \b" if self._line else b""
                del self._line[-1:]
            elif key in b"\r\n":
                self._give(bytes(self._line) + b"\n")
                echo += b"\r\n"
            elif key == _END and self._line:
                self._give(bytes(self._line))
            elif key == _END:
                self.call.end_input()
            else:
                self._line.append(key)
                echo.append(key)
        await self._print(bytes(echo))

    def _give(self, data: bytes) -> None:
        self.call.give(data)
        self._line.clear()

    def _interrupt(self) -> None:
        if self._front is not None:
            self._front.cancel()
        elif not self.is_shell:
            self.call.kill(_SIGINT)

    @property
    def is_shell(self) -> bool:
        name, *rest = self.call.request.argv
        return name.rpartition("/")[2] in _SHELLS and not rest

    async def converse(self, running: Running, programs: Mapping[str, Program]) -> int:
        """A shell that reads what is typed."""
        shell, code = Shell(running, programs), 0
        while True:
            await running.out("$ ")
            line = await shell.line()
            if line is None:
                return code
            self._front = asyncio.create_task(shell.run(line), name="in front of a fake terminal")
            try:
                await asyncio.wait({self._front})
            except asyncio.CancelledError:
                self._front.cancel()
                raise
            if self._front.cancelled():
                code = 128 + _SIGINT
                await running.out("\n")
            else:
                code = self._front.result()
            self._front = None


class World(Protocol):
    """What a program needs of its session."""

    @property
    def spec(self) -> SessionSpec: ...

    @property
    def tree(self) -> Tree: ...

    @property
    def ttys(self) -> Mapping[str, FakeTty]: ...


async def run_program(programs: Mapping[str, Program], session: World, call: FakeCall, cwd: str) -> int:
    """The program of a call, to its end. Raises FileNotFoundError when there is none of that name."""
    standard = {"HOME": "/home/user", "PATH": "/usr/bin:/bin", "USER": "user"}
    envs = {**standard, **session.spec.envs, **call.request.envs}
    tty = session.ttys.get(call.call_id)
    write = tty.write if tty else call.write
    size: Callable[[], TerminalSize] | None = (lambda: tty.size) if tty else None
    running = Running(call.request.argv, session.tree, cwd, envs, call.read, write, size)
    name, *rest = call.request.argv
    name = name.rpartition("/")[2]
    if name in _SHELLS and rest[:1] in (["-c"], ["-lc"]) and len(rest) > 1:
        return await Shell(running, programs).run(rest[1])
    if tty is not None and tty.is_shell:
        return await tty.converse(running, programs)
    program = programs.get(name)
    if program is None:
        raise FileNotFoundError(f"{name} is not a program of the fake: give it to FakeHost(programs=...)")
    return await program(running)
