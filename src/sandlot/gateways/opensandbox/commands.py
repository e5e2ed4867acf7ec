"""ExecD's commands and shells: each is a call of the session, and what it prints is told line by line."""

import asyncio
import shlex
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

from sandlot.contracts import CallStream, Host
from sandlot.gateways.opensandbox import events, translate
from sandlot.gateways.opensandbox.events import Lines, frame
from sandlot.gateways.opensandbox.files import where
from sandlot.gateways.opensandbox.schema import Reader, Refused, parameter
from sandlot.gateways.web import Answer, Request
from sandlot.model import (
    CallNotFound,
    CallOutput,
    CallRecord,
    CallRequest,
    CallResult,
    CallState,
    FileConflict,
    FileNotFound,
    FileRemove,
    FileStat,
    FileWrite,
    Stream,
    limits,
    new_call_id,
    new_session_id,
)
from sandlot.tools.contained.bash import remembering

ENVS: Final = "/opt/opensandbox/.env"
PING_S: Final = 3.0
TERM_S: Final = 3.0
_SHELLS: Final = "~/.local/state/sandlot/shells"
STREAM: Final = {"content-type": "text/event-stream", "cache-control": "no-cache"}
# Variables that were set for good are in a file, as assignments; every command reads it anew.
_WITH_ENVS: Final = f'if [ -r {ENVS} ]; then set -a; . {ENVS}; set +a; fi; exec "$@"'
SHELL: Final = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; else exec sh -c "$1"; fi'


class Commands:
    def __init__(self, host: Host, user: str) -> None:
        self._host = host
        self._user = user

    async def run(self, request: Request) -> Answer:
        body = Reader(await request.document())
        line, argv = body.text("command"), body.texts("argv")
        if bool(line.strip()) == bool(argv):
            raise Refused("INVALID_REQUEST_BODY", "give a command or argv, and not an empty one")
        background = body.flag("background")
        call = CallRequest(
            request.values["id"],
            wrapped(argv or ("/bin/sh", "-c", SHELL, "sh", line)),
            cwd=await self._cwd(request, body),
            envs={"EXECD_ENVS": ENVS, **body.table("envs")},
            user=self._identity(body),
            timeout_s=_timeout(body),
            detach=background,
            call_id=new_call_id(),
        )
        return await self._begin(call, background)

    async def _cwd(self, request: Request, body: Reader) -> str:
        return await directory(self._host, request.values["id"], body.text("cwd") or "/", self._user)

    def _identity(self, body: Reader) -> str:
        uid, gid = body.integer("uid"), body.integer("gid")
        if gid is not None and uid is None:
            raise Refused("INVALID_REQUEST_BODY", "a gid needs a uid")
        if uid is None:
            return self._user
        return str(uid) if gid is None else f"{uid}:{gid}"

    async def _begin(self, call: CallRequest, background: bool) -> Answer:
        """The call has begun when the head is sent: what is refused is refused with a status."""
        stack = AsyncExitStack()
        stream = await stack.enter_async_context(self._host.call(call))
        told = _tell_begun(stream) if background else _tell(stream)
        return Answer(200, closing(stack, told), STREAM)

    async def interrupt(self, request: Request) -> Answer:
        command = request.one("id")
        if not command:
            raise Refused("MISSING_QUERY", "which command? give its id")
        async with self._host.attach(request.values["id"], command) as stream:
            ended = asyncio.ensure_future(stream.result())
            try:
                for number in (15, 9):
                    await stream.signal(number)
                    done, _ = await asyncio.wait([ended], timeout=TERM_S)
                    if done:
                        break
            finally:
                ended.cancel()
                await asyncio.gather(ended, return_exceptions=True)
        return Answer()

    async def _record(self, request: Request) -> CallRecord:
        command = request.values["command"]
        for record in await self._host.calls(request.values["id"]):
            if record.call_id == command:
                return record
        raise CallNotFound(f"there is no command {command[:80]}")

    async def status(self, request: Request) -> Answer:
        record = await self._record(request)
        told: dict[str, Any] = {
            "id": record.call_id,
            "content": content_of(record),
            "running": record.state is CallState.RUNNING,
            "started_at": translate.moment(record.started),
        }
        if record.result is not None:
            told["exit_code"] = record.result.exit_code
            told["finished_at"] = translate.moment(record.started + record.result.duration_s)
            if record.result.exit_code:
                told["error"] = events.why(record.result)
        elif record.state is CallState.LOST:
            told |= {"error": "it was lost with its guest", "exit_code": -1}
        return Answer.json(told)

    async def logs(self, request: Request) -> Answer:
        """What it has printed behind the cursor, which counts bytes of both streams as they came."""
        text = request.one("cursor", "0") or "0"
        if not text.isascii() or not text.isdecimal() or len(text) > 18:
            raise parameter("the cursor must be a number")
        cursor = int(text)
        record = await self._record(request)
        printed = bytearray()
        at = 0
        async with self._host.attach(request.values["id"], record.call_id) as stream:
            async for piece in so_far(stream, record.state is CallState.RUNNING):
                begin = max(0, cursor - at)
                at += len(piece)
                printed += piece[begin:]
                if len(printed) >= limits.FILE_READ_BYTES_MAX:
                    break
        headers = {"EXECD-COMMANDS-TAIL-CURSOR": str(max(at, min(cursor, at)))}
        return Answer.text(printed.decode(errors="replace"), headers=headers)

    async def create_session(self, request: Request) -> Answer:
        body = Reader(await request.document(empty={}) or {})
        cwd = await self._cwd(request, body)
        session = new_session_id()
        await self._host.write_file(self._shell_file(request, session), _once(f"cd -- {shlex.quote(cwd)}\n".encode()))
        return Answer.json({"session_id": session})

    def _shell_file(self, request: Request, session: str) -> FileWrite:
        return FileWrite(request.values["id"], where(f"{_SHELLS}/{session}"), self._user, mode=0o600)

    async def _known_session(self, request: Request) -> str:
        session = request.values["session"]
        if not session.replace("-", "").isalnum() or len(session) > 64:
            raise Refused("CONTEXT_NOT_FOUND", f"there is no session {session[:80]}", status=404)
        try:
            await self._host.stat_file(FileStat(request.values["id"], where(f"{_SHELLS}/{session}"), self._user))
        except FileNotFound:
            raise Refused("CONTEXT_NOT_FOUND", f"there is no session {session[:80]}", status=404) from None
        return session

    async def run_in_session(self, request: Request) -> Answer:
        body = Reader(await request.document())
        command = body.text("command")
        if not command.strip():
            raise Refused("INVALID_REQUEST_BODY", "the command is empty")
        session = await self._known_session(request)
        if body.text("cwd"):
            command = f"cd -- {shlex.quote(await self._cwd(request, body))} || exit\n{command}"
        call = CallRequest(
            request.values["id"],
            wrapped(remembering(session, command)),
            cwd="/",
            envs={"EXECD_ENVS": ENVS},
            user=self._user,
            timeout_s=_timeout(body),
            call_id=new_call_id(),
        )
        return await self._begin(call, background=False)

    async def delete_session(self, request: Request) -> Answer:
        session = await self._known_session(request)
        await self._host.remove_file(FileRemove(request.values["id"], where(f"{_SHELLS}/{session}"), self._user))
        return Answer()


async def directory(host: Host, session_id: str, path: str, user: str) -> str:
    """Where a command is to begin, if it is there."""
    if path == "/":
        return path
    try:
        info = await host.stat_file(FileStat(session_id, path, user))
    except (FileNotFound, FileConflict):
        info = None
    if info is None or info.kind != "directory":
        raise Refused("INVALID_REQUEST_BODY", f"there is no directory {path[:200]}")
    return info.path


def wrapped(argv: tuple[str, ...]) -> tuple[str, ...]:
    return ("/bin/sh", "-c", _WITH_ENVS, "sh", *argv)


def content_of(record: CallRecord) -> str:
    """What somebody asked to run, without what was put around it."""
    argv = record.argv[4:] if record.argv[2:3] == (_WITH_ENVS,) else record.argv
    return argv[4] if argv[2:3] == (SHELL,) else shlex.join(argv)


def _timeout(body: Reader) -> float | None:
    """Milliseconds; 0 and nothing are no limit."""
    found = body.integer("timeout")
    if found is None or found == 0:
        return None
    if found < 0:
        raise Refused("INVALID_REQUEST_BODY", "timeout is negative")
    return min(found / 1000, limits.CALL_TIMEOUT_S_MAX)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def closing(stack: AsyncExitStack, source: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """However it ends, what was opened for it is closed: a command that nobody listens to any more is ended."""
    async with stack:
        async for piece in source:
            yield piece


async def _tell_begun(stream: CallStream) -> AsyncGenerator[bytes]:
    begun = time.monotonic()
    async for _started in stream:
        break
    yield frame("init", text=stream.call_id) + frame("ping", text="pong")
    yield frame("execution_complete", execution_time=round((time.monotonic() - begun) * 1000))


async def _tell(stream: CallStream) -> AsyncGenerator[bytes]:
    """All of it, with a sign of life where nothing is printed."""
    yield frame("init", text=stream.call_id) + frame("ping", text="pong")
    lines = {Stream.STDOUT: Lines(Stream.STDOUT), Stream.STDERR: Lines(Stream.STDERR)}
    source = aiter(stream)
    waiting = asyncio.ensure_future(anext(source))
    try:
        while True:
            done, _ = await asyncio.wait([waiting], timeout=PING_S)
            if not done:
                yield frame("ping", text="pong")
                continue
            event = waiting.result()
            if isinstance(event, CallResult):
                yield b"".join(each.close() for each in lines.values()) + events.end(event)
                return
            waiting = asyncio.ensure_future(anext(source))
            if isinstance(event, CallOutput) and (told := lines[event.stream].feed(event.data)):
                yield told
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def so_far(stream: CallStream, running: bool) -> AsyncGenerator[bytes]:
    """What is there, without waiting for what is to come."""
    source = aiter(stream)
    while True:
        waiting = asyncio.ensure_future(anext(source))
        done, _ = await asyncio.wait([waiting], timeout=0.05 if running else None)
        if not done:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            return
        event = waiting.result()
        if isinstance(event, CallResult):
            return
        if isinstance(event, CallOutput):
            yield event.data
