"""ExecD's terminals: shells that go on when their client leaves, read again from any byte, and taken over."""

import asyncio
import json
import signal
from collections.abc import Mapping
from contextlib import aclosing, suppress
from typing import Any, Final, cast

from sandlot.contracts import Host, TerminalStream
from sandlot.gateways import websockets
from sandlot.gateways.opensandbox.commands import ENVS, SHELL, directory, wrapped
from sandlot.gateways.opensandbox.schema import Reader, Refused, parameter
from sandlot.gateways.web import Answer, Passage, Receive, Request, Scope, Send
from sandlot.gateways.websockets import WebSocket
from sandlot.model import (
    InputMode,
    SandlotError,
    TerminalAttach,
    TerminalEnded,
    TerminalInput,
    TerminalKill,
    TerminalOutput,
    TerminalRequest,
    TerminalResize,
    TerminalSize,
    TerminalTaken,
    limits,
)

STDIN, STDOUT, REPLAY = b"\x00", b"\x01", b"\x03"
TAKEN_OVER: Final = 4001
_LOGIN: Final = "if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi"
_SIGNALS: Final[Mapping[str, int]] = {one.name: one.value for one in signal.Signals}


class Terminals:
    def __init__(self, host: Host, user: str) -> None:
        self._host = host
        self._user = user

    async def create(self, request: Request) -> Answer:
        body = Reader(await request.document(empty={}) or {})
        cwd = await directory(self._host, request.values["id"], body.text("cwd") or "/", self._user)
        line = body.text("command")
        argv = ("/bin/sh", "-c", SHELL, "sh", line) if line.strip() else ("/bin/sh", "-c", _LOGIN)
        asked = TerminalRequest(
            request.values["id"], wrapped(argv), cwd=cwd, envs={"EXECD_ENVS": ENVS, "TERM": "xterm"}, user=self._user
        )
        terminal = await self._host.open_terminal(asked)
        return Answer.json({"session_id": terminal.terminal_id})

    async def get(self, request: Request) -> Answer:
        terminal = await self._host.get_terminal(request.values["id"], request.values["pty"])
        told = {
            "session_id": terminal.terminal_id,
            "running": terminal.result is None,
            "output_offset": terminal.end,
        }
        return Answer.json(told)

    async def delete(self, request: Request) -> Answer:
        await self._host.kill_terminal(TerminalKill(request.values["id"], request.values["pty"]))
        return Answer()

    async def attach(self, request: Request) -> Passage:
        if request.one("pty", "1") == "0":
            raise Refused("NOT_SUPPORTED", "shells on pipes are `/session`; here is a terminal", status=501)
        since = request.one("since")
        if since and not (since.isascii() and since.isdecimal() and len(since) < 16):
            raise parameter("since must be a number")
        takes = request.one("takeover") == "1"
        asked = TerminalAttach(
            request.values["id"],
            request.values["pty"],
            offset=int(since) if since else None,
            input=InputMode.TAKE if takes else InputMode.HOLD,
        )

        async def serve(_scope: Scope, _receive: Receive, _send: Send) -> None:
            async with self._host.attach_terminal(asked) as stream:
                await _Client(self._host, stream, websockets.accept(request)).serve(replays=bool(since))

        return Passage(serve)


class _Client:
    """One websocket on one terminal."""

    def __init__(self, host: Host, stream: TerminalStream, socket: WebSocket) -> None:
        self._host = host
        self._stream = stream
        self._socket = socket
        self._of = (stream.terminal.session_id, stream.terminal.terminal_id)

    async def serve(self, *, replays: bool) -> None:
        telling = asyncio.ensure_future(self._tell(self._stream.terminal.end if replays else 0))
        hearing = asyncio.ensure_future(self._hear())
        try:
            await asyncio.wait([telling, hearing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (telling, hearing):
                task.cancel()
            await asyncio.gather(telling, hearing, return_exceptions=True)

    async def _tell(self, live_from: int) -> None:
        """What was there before, then that it is connected, then what comes."""
        try:
            is_connected = live_from == 0
            if is_connected:
                await self._connected()
            async for event in self._stream:
                if not is_connected and not (isinstance(event, TerminalOutput) and event.offset < live_from):
                    is_connected = True
                    await self._connected()
                if isinstance(event, TerminalOutput):
                    await self._output(event, is_connected)
                    if not is_connected and event.offset + len(event.data) >= live_from:
                        is_connected = True
                        await self._connected()
                elif isinstance(event, TerminalTaken):
                    await self._socket.close(TAKEN_OVER, "TAKEN_OVER")
                    return
                elif isinstance(event, TerminalEnded):
                    await self._say({"type": "exit", "exit_code": event.result.exit_code})
                    await self._socket.close(1000, "process exited")
                    return
        except SandlotError as error:
            await self._error("RUNTIME_ERROR", error)
            await self._socket.close(1011)
        except OSError:
            return  # the client is gone

    async def _output(self, event: TerminalOutput, is_live: bool) -> None:
        """A replay tells the offset behind it: what to ask for next."""
        if is_live:
            await self._socket.send(STDOUT + event.data)
        else:
            await self._socket.send(REPLAY + (event.offset + len(event.data)).to_bytes(8, "big") + event.data)

    async def _connected(self) -> None:
        await self._say({"type": "connected", "session_id": self._of[1], "mode": "pty"})

    async def _say(self, told: dict[str, Any]) -> None:
        await self._socket.send(json.dumps(told))

    async def _error(self, code: str, error: Exception) -> None:
        with suppress(OSError):
            await self._say({"type": "error", "code": code, "error": str(error)[:1000]})

    async def _hear(self) -> None:
        async with aclosing(self._socket.messages()) as messages:
            async for message in messages:
                try:
                    await self._do(message)
                except SandlotError as error:
                    await self._error("STDIN_WRITE_FAILED" if isinstance(message, bytes) else "RUNTIME_ERROR", error)
                except (ValueError, RecursionError) as error:
                    await self._error("INVALID_FRAME", error)

    async def _do(self, message: bytes | str) -> None:
        """Raises ValueError for what is no frame."""
        if isinstance(message, bytes):
            if message[:1] != STDIN:
                raise ValueError("unknown channel")
            for at in range(1, len(message), limits.TERMINAL_INPUT_BYTES_MAX):
                piece = message[at : at + limits.TERMINAL_INPUT_BYTES_MAX]
                await self._host.write_terminal(TerminalInput(*self._of, piece, self._stream.client_id))
            return
        found: object = json.loads(message)
        frame = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        match frame.get("type"):
            case "ping":
                await self._say({"type": "pong"})
            case "resize":
                size = TerminalSize(_whole(frame.get("rows")), _whole(frame.get("cols")))
                await self._host.resize_terminal(TerminalResize(*self._of, size, self._stream.client_id))
            case "signal":
                number = _SIGNALS.get(str(frame.get("signal")))
                if number is None:
                    raise ValueError("unknown signal")
                await self._host.kill_terminal(TerminalKill(*self._of, number))
            case _:
                raise ValueError("unknown frame type")


def _whole(found: object) -> int:
    if not isinstance(found, int) or isinstance(found, bool):
        raise ValueError("rows and cols are numbers")
    return found
