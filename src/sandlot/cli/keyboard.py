"""A terminal of a session, on the terminal that the program itself was started on."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator

from sandlot.cli.screen import Screen
from sandlot.cli.stream import OwnStreams
from sandlot.cli.terminal import raw, terminal_size
from sandlot.contracts import Host, TerminalStream
from sandlot.model import (
    CallResult,
    Conflict,
    InputMode,
    SandlotError,
    Stream,
    TerminalAttach,
    TerminalEnded,
    TerminalInput,
    TerminalOutput,
    TerminalResize,
    TerminalTaken,
)

LEAVE_KEY = 0x1D  # Ctrl-]
LEAVE_WORDS = "Ctrl-] twice"
_TWICE_WITHIN_S = 0.5
_LAST_KEYS_S = 1.0  # for keys that were typed before it was left
_WAITING_MAX = 64  # pieces that a program does not read; then a bell is all that they do
_READ_BYTES = 64 * 1024
_REPLAY_S = 3.0  # for what was printed before to be shown, where no key is pressed meanwhile
_REPLAY_BYTES = 64 * 1024  # shown to whoever comes back: a few screens
_BELL = b"\a"
# What programs may have asked a terminal for: another screen, the mouse, marks around what is pasted, no cursor.
_AS_IT_WAS = b"\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?25h\x1b[0m\r\n"
# Questions to a terminal. Shown again they would be answered again, to a program that does not ask any more.
_QUESTIONS = re.compile(rb"\x1b\[[>=]?\d*c|\x1b\[\??[56]n|\x1b\[\??\d+\$p|\x1b\](?:4;\d+|1\d);\?(?:\x07|\x1b\\)|\x05")


class _Keys:
    """Keys as they are read, without those that leave."""

    def __init__(self) -> None:
        self.is_held = False  # the first of two was pressed
        self.has_left = False

    def take(self, data: bytes) -> bytes:
        """What is for the program."""
        given = bytearray()
        for key in data:
            if key != LEAVE_KEY:
                given += self.release() + bytes((key,))
            elif self.is_held:
                self.has_left = True
                break
            else:
                self.is_held = True
        return bytes(given)

    def release(self) -> bytes:
        """It was pressed once only, and is for the program."""
        held, self.is_held = self.is_held, False
        return bytes((LEAVE_KEY,)) if held else b""


class Keyboard:
    """One visit to a terminal: keys go in, output comes out, until it ends or is left."""

    def __init__(self, host: Host, session_id: str, terminal_id: str, screen: Screen) -> None:
        self._host = host
        self._session_id = session_id
        self._terminal_id = terminal_id
        self._screen = screen
        self._sink = OwnStreams()
        self._may_write = True
        self._quiet_until = 0.0  # what a program asks of a terminal until then was asked long ago

    async def visit(
        self, mode: InputMode = InputMode.WATCH, *, again: bool = False, may_write: bool = True
    ) -> CallResult | None:
        """How it ended; None when it was left and goes on. `again`: somebody was here before. Raises Conflict,
        CallNotFound, Unavailable."""
        self._may_write = may_write
        if again:
            self._quiet_until = asyncio.get_running_loop().time() + _REPLAY_S
        told = await self._host.get_terminal(self._session_id, self._terminal_id)
        offset = max(told.kept_from, told.end - _REPLAY_BYTES)
        request = TerminalAttach(self._session_id, self._terminal_id, offset, mode)
        async with self._host.attach_terminal(request) as stream:
            with raw():
                async with self._sizes(stream.client_id):
                    result = await self._converse(stream)
                if result is None:
                    await self._sink.write(Stream.STDOUT, _AS_IT_WAS)
        return result

    async def _converse(self, stream: TerminalStream) -> CallResult | None:
        showing = asyncio.ensure_future(self._show(stream))
        typing = asyncio.ensure_future(self._type(stream.client_id))
        try:
            await asyncio.wait({showing, typing}, return_when=asyncio.FIRST_COMPLETED)
            if showing.done():
                return showing.result()
            typing.result()
            return None
        finally:
            showing.cancel()
            typing.cancel()
            await asyncio.gather(showing, typing, return_exceptions=True)

    async def _show(self, stream: TerminalStream) -> CallResult | None:
        async for event in stream:
            if isinstance(event, TerminalOutput):
                is_old = asyncio.get_running_loop().time() < self._quiet_until
                data = _QUESTIONS.sub(b"", event.data) if is_old else event.data
                await self._sink.write(Stream.STDOUT, data)
            elif isinstance(event, TerminalTaken):
                self._may_write = False
                self._screen.note(f"the client {event.by} has the input now\r")
            elif isinstance(event, TerminalEnded):
                return event.result
        raise AssertionError("a stream ends with its end")

    async def _type(self, client_id: str) -> None:
        """Until it is left, by its key or with our own terminal. A program that does not read keeps nobody here."""
        keys, fd = _Keys(), sys.stdin.fileno()
        waiting: asyncio.Queue[bytes] = asyncio.Queue(_WAITING_MAX)
        sending = asyncio.ensure_future(self._send_all(waiting, client_id))
        try:
            while not keys.has_left:
                given = keys.release()
                if await _readable(fd, _TWICE_WITHIN_S if given else None):
                    keys.is_held = bool(given)
                    try:
                        data = os.read(fd, _READ_BYTES)
                    except OSError:
                        return
                    if not data:
                        return
                    given = keys.take(data)
                    self._quiet_until = 0.0
                if given and waiting.full():
                    await self._sink.write(Stream.STDOUT, _BELL)
                elif given:
                    waiting.put_nowait(given)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_KEYS_S):
                    await waiting.join()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send_all(self, waiting: asyncio.Queue[bytes], client_id: str) -> None:
        while True:
            data = await waiting.get()
            keys = TerminalInput(self._session_id, self._terminal_id, data, client_id)
            try:
                if self._may_write:
                    await self._host.write_terminal(keys)
                else:
                    await self._sink.write(Stream.STDOUT, _BELL)
            except Conflict:
                await self._sink.write(Stream.STDOUT, _BELL)
            except SandlotError:
                return  # whoever reads the output is told
            finally:
                waiting.task_done()

    @contextlib.asynccontextmanager
    async def _sizes(self, client_id: str) -> AsyncGenerator[None]:
        """The terminal is as large as ours, now and whenever ours changes."""
        changed = asyncio.Event()
        changed.set()

        async def tell() -> None:
            while True:
                await changed.wait()
                changed.clear()
                if self._may_write:
                    with contextlib.suppress(Conflict):
                        size = TerminalResize(self._session_id, self._terminal_id, terminal_size(), client_id)
                        await self._host.resize_terminal(size)

        loop = asyncio.get_running_loop()
        telling = loop.create_task(tell(), name="sizes of a terminal")
        loop.add_signal_handler(signal.SIGWINCH, changed.set)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)


async def _readable(fd: int, within_s: float | None) -> bool:
    loop = asyncio.get_running_loop()
    there: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: there.done() or there.set_result(None))
    try:
        async with asyncio.timeout(within_s):
            await there
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
    return True
