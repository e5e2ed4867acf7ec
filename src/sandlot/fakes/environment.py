"""Environments in memory: sessions are dictionaries of files, and nothing outside is touched.

What it understands of a shell is little, and anything else is exit code 127: `echo WORDS`, `cat FILE`, `exit N`,
`sleep S`, with `> FILE` or `>> FILE`, and `while [ ! -e FILE ]; do sleep S; done`; one after the other with `;`.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from sandlot.contracts import ExecutionEnvironment, OnProgress
from sandlot.model import (
    CapabilityNotSupported,
    Conflict,
    EnvironmentCapabilities,
    EnvironmentState,
    InvalidArgument,
    InvalidState,
    LimitReached,
    MaxSessionsReached,
    SessionDestroying,
    SessionExists,
    SessionNotFound,
    SessionPaused,
    SessionSpec,
    Snapshot,
    SnapshotKind,
    SnapshotNotFound,
    SnapshotsNotAvailable,
    Stream,
    TextBlock,
    Tool,
    ToolProblem,
    ToolProgress,
    ToolRequest,
    ToolResult,
    ToolTier,
    limits,
    new_call_id,
    new_session_id,
)
from sandlot.model.ids import check_id, check_session_id
from sandlot.model.snapshot import check_given_name

_STATEMENT = re.compile(r"\s*while \[ ! -e (?P<file>\S+) \]; do sleep (?P<pause>[\d.]+); done|(?P<plain>[^;]+)")
_REDIRECTED = re.compile(r"(?P<words>.*?)\s*(?P<how>>>?)\s*(?P<file>[^\s>]+)")
_FAILED, _TIMED_OUT, _UNKNOWN = 1, 124, 127
_Say = Callable[[str], Awaitable[None]]


@dataclass(eq=False)
class _Session:
    session_id: str
    ends: float
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    snapshots: dict[str, tuple[Snapshot, dict[str, bytes]]] = field(
        default_factory=dict[str, tuple[Snapshot, dict[str, bytes]]]
    )
    calls: dict[str, "asyncio.Task[ToolResult]"] = field(default_factory=dict[str, "asyncio.Task[ToolResult]"])
    is_paused: bool = False
    is_gone: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def _schema(*names: str) -> Mapping[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": list(names),
        "additionalProperties": False,
    }


_TOOLS = (
    Tool("read_file", "Read a text file, with line numbers.", _schema("path"), ToolTier.DIRECT, changes=False),
    Tool("write_file", "Write a file: whole, or not at all.", _schema("path", "content"), ToolTier.DIRECT),
    Tool("bash", "Run what the fake understands of a shell.", _schema("cmd"), ToolTier.CONTAINED),
)


class FakeProvider:
    """Whoever has many sessions; environments are made of it."""

    def __init__(
        self,
        *,
        snapshots: bool = True,
        pause: bool = True,
        sessions_max: int = 0,
        duration_s_max: float = limits.SESSION_LIFETIME_S_MAX,
    ) -> None:
        self.sessions: dict[str, _Session] = {}
        self.capabilities = EnvironmentCapabilities(
            snapshots=snapshots,
            rollback=snapshots,
            pause=pause,
            streaming_progress=True,
            max_session_duration_s=duration_s_max,
            concurrent_sessions=sessions_max,
        )

    def environment(self) -> ExecutionEnvironment:
        """One without a session."""
        return FakeEnvironment(self)

    def make(self, spec: SessionSpec) -> _Session:
        for session_id in tuple(self.sessions):
            with suppress(SessionNotFound):
                self.find(session_id)  # which ends it, when its time is up
        most = self.capabilities
        if most.max_session_duration_s is not None and spec.timeout_s > most.max_session_duration_s:
            raise LimitReached(
                f"a session lives for at most {most.max_session_duration_s:g} s, not {spec.timeout_s:g}",
                limit="max_session_duration_s",
            )
        session_id = spec.session_id or new_session_id()
        if session_id in self.sessions:
            raise SessionExists(f"session {session_id} is there already", session_id=session_id)
        if most.concurrent_sessions and len(self.sessions) >= most.concurrent_sessions:
            raise MaxSessionsReached(f"there are {len(self.sessions)} sessions already", limit="sessions_max")
        session = self.sessions[session_id] = _Session(session_id, time.monotonic() + spec.timeout_s)
        return session

    def find(self, session_id: str) -> _Session:
        session = self.sessions.get(check_session_id(session_id))
        if session is not None and time.monotonic() >= session.ends:
            self.remove(session)
            session = None
        if session is None:
            raise SessionNotFound(f"there is no session {session_id}", session_id=session_id)
        return session

    def remove(self, session: _Session) -> None:
        self.sessions.pop(session.session_id, None)
        session.is_gone = True
        for task in session.calls.values():
            task.cancel()


class FakeEnvironment:
    def __init__(self, provider: FakeProvider) -> None:
        self._provider = provider
        self._session_id: str | None = None
        self._is_destroyed = False

    @property
    def session_id(self) -> str | None:
        return self._session_id

    async def create(self, spec: SessionSpec) -> str:
        self._unbound()
        self._session_id = self._provider.make(spec).session_id
        return self._session_id

    async def attach_session(self, session_id: str) -> None:
        self._unbound()
        self._session_id = self._provider.find(session_id).session_id

    async def pause(self) -> None:
        session = self._session()
        if not self._provider.capabilities.pause:
            raise CapabilityNotSupported("this provider has no pause", capability="pause")
        session.is_paused = True

    async def resume(self) -> None:
        self._session().is_paused = False

    async def destroy(self) -> None:
        if self._session_id is None or self._is_destroyed:
            return
        with suppress(SessionNotFound):
            self._provider.remove(self._provider.find(self._session_id))
        self._is_destroyed = True

    async def state(self) -> EnvironmentState:
        if self._session_id is None:
            return EnvironmentState.CREATING
        try:
            session = self._session()
        except (SessionNotFound, InvalidState):
            return EnvironmentState.DESTROYED
        return EnvironmentState.PAUSED if session.is_paused else EnvironmentState.ACTIVE

    async def capabilities(self) -> EnvironmentCapabilities:
        return self._provider.capabilities

    async def tools(self) -> Sequence[Tool]:
        return _TOOLS

    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        session = self._session()
        if request.session_id != session.session_id:
            raise InvalidArgument(f"this environment is session {session.session_id}, not {request.session_id}")
        tool = next((tool for tool in _TOOLS if tool.name == request.tool), None)
        if tool is None:
            raise InvalidArgument(f"there is no tool {request.tool!r}", next_step="ask for the catalogue")
        if session.is_paused:
            raise SessionPaused(f"session {session.session_id} is paused", next_step="resume it")
        call_id = request.call_id or new_call_id()
        known = session.calls.get(call_id)
        task = known or asyncio.create_task(_done(session, tool, call_id, request, on_progress))
        session.calls[call_id] = task
        try:
            await asyncio.wait([task])
        finally:
            if known is None and not task.done():
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            raise SessionDestroying(f"session {session.session_id} was destroyed meanwhile")
        return task.result()

    async def create_snapshot(self, name: str) -> Snapshot:
        session = self._with_snapshots()
        check_given_name(check_id("snapshot", name))
        if name in session.snapshots:
            raise Conflict(f"there is a snapshot {name}", next_step="choose another name")
        shot = Snapshot(session.session_id, name, SnapshotKind.NAMED, time.time())
        session.snapshots[name] = (shot, dict(session.files))
        return shot

    async def rollback(self, snapshot: str) -> None:
        session = self._with_snapshots()
        if snapshot not in session.snapshots:
            raise SnapshotNotFound(f"session {session.session_id} has no snapshot {snapshot}")
        session.files = dict(session.snapshots[snapshot][1])
        session.wake()

    # ---- which session -----------------------------------------------------------------------------------------

    def _unbound(self) -> None:
        if self._session_id is not None:
            raise InvalidState(f"this environment has session {self._session_id}", next_step="make another one")

    def _session(self) -> _Session:
        if self._session_id is None:
            raise InvalidState("this environment has no session yet", next_step="create one, or attach to one")
        if self._is_destroyed:
            raise InvalidState(f"session {self._session_id} was destroyed", next_step="make another environment")
        return self._provider.find(self._session_id)

    def _with_snapshots(self) -> _Session:
        session = self._session()
        if not self._provider.capabilities.snapshots:
            raise SnapshotsNotAvailable("this provider has no snapshots", capability="snapshots")
        return session


# ---- tools -------------------------------------------------------------------------------------------------------


async def _done(
    session: _Session, tool: Tool, call_id: str, request: ToolRequest, on_progress: OnProgress | None
) -> ToolResult:
    began = time.perf_counter()

    async def say(text: str) -> None:
        if on_progress is not None:
            answer = on_progress(ToolProgress(Stream.STDOUT, text))
            if isinstance(answer, Awaitable):
                await cast("Awaitable[object]", answer)

    try:
        given = _arguments(tool, request.arguments)
        text, code = await _work(session, tool.name, given, request.timeout_s or limits.TOOL_TIMEOUT_S, say)
        is_error = code == _TIMED_OUT
    except ToolProblem as problem:
        text, code, is_error = str(problem), None, True
    taken = time.perf_counter() - began
    if code is not None:
        text = f"{text or '(no output)'}\nexit code {code}, {taken:.2f} s"
    return ToolResult(call_id, tool.name, tool.tier, (TextBlock(text),), is_error, code, taken)


def _arguments(tool: Tool, given: Mapping[str, Any]) -> Mapping[str, str]:
    wanted: list[str] = tool.parameters["required"]
    if sorted(given) != sorted(wanted) or not all(isinstance(value, str) for value in given.values()):
        raise ToolProblem(f"{tool.name} takes {', '.join(sorted(wanted))}, each a string")
    return given


async def _work(
    session: _Session, tool: str, given: Mapping[str, str], timeout_s: float, say: _Say
) -> tuple[str, int | None]:
    match tool:
        case "write_file":
            content = given["content"].encode("utf-8", "surrogateescape")
            session.files[given["path"]] = content
            session.wake()
            return f"wrote {len(content)} bytes to {given['path']}", None
        case "read_file":
            lines = _content(session, given["path"]).removesuffix("\n").split("\n")
            return "\n".join(f"{number:6d}\t{line}" for number, line in enumerate(lines, 1)), None
        case _:
            said: list[str] = []
            try:
                async with asyncio.timeout(timeout_s):
                    code = await _shell(session, given["cmd"], said, say)
            except TimeoutError:
                code = _TIMED_OUT
            return "".join(said).rstrip("\n"), code


def _content(session: _Session, path: str) -> str:
    if path not in session.files:
        raise ToolProblem(f"there is no file {path}")
    return session.files[path].decode(errors="replace")


async def _shell(session: _Session, script: str, said: list[str], say: _Say) -> int:
    for statement in _STATEMENT.finditer(script):
        if statement["file"]:
            while statement["file"] not in session.files:
                await session.changed.wait()
            continue
        plain = statement["plain"].strip()
        if plain.startswith("exit "):
            return int(plain.split()[1])
        redirected = _REDIRECTED.fullmatch(plain)
        async for text in _run(session, redirected["words"] if redirected else plain):
            if isinstance(text, int):
                return text
            if redirected is None:
                said.append(text)
                await say(text)
                continue
            before = session.files.get(redirected["file"], b"") if redirected["how"] == ">>" else b""
            session.files[redirected["file"]] = before + text.encode()
            session.wake()
    return 0


async def _run(session: _Session, words: str) -> AsyncIterator[str | int]:
    """What it prints, or its exit code when it fails."""
    program, _, rest = words.partition(" ")
    if program == "echo":
        yield rest.strip() + "\n"
    elif program == "sleep":
        await asyncio.sleep(float(rest))
    elif program != "cat":
        yield _UNKNOWN
    else:
        yield _content(session, rest.strip()) if rest.strip() in session.files else _FAILED
