"""A directory of this machine. Tools run here, as the user of this process, and nothing holds them in: for code that
one trusts, and where there is no host.

Each session is a directory of its own, with its files and a note of what it is, so any process that is given the same
directory finds it. Tools of files stay in it; commands can go where this user can.
"""

import asyncio
import errno
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from sandlot.contracts import ExecutionEnvironment, Heard, OnProgress
from sandlot.environments.binding import Binding
from sandlot.environments.local_commands import run_command
from sandlot.environments.local_files import LocalFiles
from sandlot.environments.tool_calls import ToolCalls, catalogue
from sandlot.environments.tree import Tree, translate
from sandlot.environments.wishes import check_life, refuse_others
from sandlot.model import (
    CallResult,
    CapabilityNotSupported,
    EnvironmentCapabilities,
    EnvironmentState,
    MaxSessionsReached,
    SessionExists,
    SessionNotFound,
    SessionPaused,
    SessionSpec,
    Snapshot,
    SnapshotsNotAvailable,
    Tool,
    ToolRequest,
    ToolResult,
    limits,
    new_call_id,
    new_session_id,
)
from sandlot.model.ids import check_session_id
from sandlot.tools.contained.command import Command

_FILES, _HOME, _NOTE, _PAUSED = "files", "home", "session.json", "paused"
_MAKING, _ENDING = ".making-", ".ending-"
_FORGOTTEN_S = 3600.0  # after which what someone began to make is nobody's
_HELD = frozenset({"session_id", "labels", "envs", "timeout_s", "starts"})
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class LocalConfig:
    """Variables of this process are not handed on: what a command needs is said here."""

    envs: Mapping[str, str] = field(default_factory=dict[str, str])
    sessions_max: int = 0  # 0: as many as are asked for
    session_duration_s_max: float = limits.SESSION_LIFETIME_S_MAX


class LocalProvider:
    """The sessions below one directory."""

    def __init__(self, directory: str | os.PathLike[str], config: LocalConfig | None = None) -> None:
        self._top = Path(os.path.realpath(directory))
        self.config = config or LocalConfig()
        self._calls: dict[str, ToolCalls] = {}
        self._making = asyncio.Lock()

    def environment(self) -> ExecutionEnvironment:
        """One without a session."""
        return LocalEnvironment(self)

    async def make(self, spec: SessionSpec) -> str:
        refuse_others(spec, _HELD, "a directory of this machine")
        check_life(spec, self.config.session_duration_s_max)
        session_id = spec.session_id or new_session_id()
        async with self._making:
            there = await asyncio.to_thread(self._living)
            if session_id not in there and 0 < self.config.sessions_max <= len(there):
                raise MaxSessionsReached(
                    f"there are {len(there)} sessions already", next_step="destroy one", limit="sessions_max"
                )
            await asyncio.to_thread(self._make, session_id, spec)
        self._calls = {known: calls for known, calls in self._calls.items() if known in there and known != session_id}
        return session_id

    def _make(self, session_id: str, spec: SessionSpec) -> None:
        """It has its name when it is whole."""
        note = {"ends": time.time() + spec.timeout_s, "labels": dict(spec.labels), "envs": dict(spec.envs)}
        new = self._top / f"{_MAKING}{new_session_id()}"
        try:
            for name in (_FILES, _HOME):
                (new / name).mkdir(parents=True)
            (new / _NOTE).write_text(json.dumps(note))
            new.rename(self._top / session_id)  # onto a directory that is not empty it fails
        except OSError as error:
            shutil.rmtree(new, ignore_errors=True)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise translate(error, str(self._top)) from error
            raise SessionExists(
                f"session {session_id} is there already", next_step="attach to it", session_id=session_id
            ) from error

    def _living(self) -> list[str]:
        """Those whose time is up go, and what was left half-made or half-removed."""
        found: list[str] = []
        for path in self._top.iterdir() if self._top.is_dir() else ():
            with suppress(SessionNotFound, OSError):
                if path.name.startswith(_ENDING) or (
                    path.name.startswith(_MAKING) and path.stat().st_mtime < time.time() - _FORGOTTEN_S
                ):
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    self.note(path.name)
                    found.append(path.name)
        return found

    def note(self, session_id: str) -> Mapping[str, Any]:
        """Raises SessionNotFound. What is no note of ours is left alone."""
        with suppress(OSError, ValueError):
            told: object = json.loads((self._top / check_session_id(session_id) / _NOTE).read_text())
            ends = cast("dict[str, Any]", told).get("ends") if isinstance(told, dict) else None
            if isinstance(ends, float):
                if time.time() < ends:
                    return cast("dict[str, Any]", told)
                self._remove(session_id)
        raise SessionNotFound(f"there is no session {session_id}", session_id=session_id)

    def files(self, session_id: str) -> Path:
        return self._top / session_id / _FILES

    def is_paused(self, session_id: str) -> bool:
        return (self._top / session_id / _PAUSED).exists()

    def pause(self, session_id: str, paused: bool) -> None:
        self.note(session_id)
        mark = self._top / session_id / _PAUSED
        if paused:
            mark.touch()
        else:
            mark.unlink(missing_ok=True)

    def calls(self, session_id: str) -> ToolCalls:
        """The same for every environment of this session, so that a call is known to all of them."""
        if session_id not in self._calls:
            files = LocalFiles(Tree(str(self.files(session_id))))

            async def run(command: Command, request: ToolRequest, heard: Heard) -> CallResult:
                return await self._run(session_id, command, request, heard)

            self._calls[session_id] = ToolCalls(session_id, files, run)
        return self._calls[session_id]

    async def _run(self, session_id: str, command: Command, request: ToolRequest, heard: Heard) -> CallResult:
        if request.user is not None or request.resources != type(request.resources)():
            raise CapabilityNotSupported(
                "commands of this machine have its user and no limits of their own", next_step="leave them out"
            )
        note = await asyncio.to_thread(self.note, session_id)
        where = str(self.files(session_id))
        home = str(self._top / session_id / _HOME)
        envs = {"PATH": _PATH, "LANG": "C.UTF-8", "HOME": home, **self.config.envs, **note["envs"]}
        left = max(0.001, note["ends"] - time.time())
        command = Command(command.argv, command.envs, min(command.timeout_s, left), command.bytes_max)
        return await run_command(command, where, envs, request.call_id or new_call_id(), heard)

    async def remove(self, session_id: str) -> None:
        """What this process runs in it ends first. Again does nothing."""
        calls = self._calls.pop(session_id, None)
        if calls is not None:
            await calls.end()
        try:
            await asyncio.to_thread(self._remove, session_id)
        except OSError as error:
            raise translate(error, str(self._top / session_id)) from error

    def _remove(self, session_id: str) -> None:
        """Its name is free at once."""
        gone = self._top / f"{_ENDING}{new_session_id()}"
        with suppress(FileNotFoundError):
            (self._top / session_id).rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


class LocalEnvironment:
    """The directory knows everything but the id of the session and the fact that it was destroyed."""

    def __init__(self, provider: LocalProvider) -> None:
        self._provider = provider
        self._binding = Binding()

    @property
    def session_id(self) -> str | None:
        return self._binding.session_id

    async def create(self, spec: SessionSpec) -> str:
        async with self._binding.begin():
            made = self._binding.session_id = await self._provider.make(spec)
        return made

    async def attach_session(self, session_id: str) -> None:
        async with self._binding.begin():
            await asyncio.to_thread(self._provider.note, session_id)
            self._binding.session_id = session_id

    async def pause(self) -> None:
        """Nothing is frozen: what runs goes on, and no tool is taken."""
        await asyncio.to_thread(self._provider.pause, self._binding.need(), True)

    async def resume(self) -> None:
        await asyncio.to_thread(self._provider.pause, self._binding.need(), False)

    async def destroy(self) -> None:
        if self._binding.session_id is None or self._binding.is_destroyed:
            return
        await self._provider.remove(self._binding.session_id)
        self._binding.is_destroyed = True

    async def state(self) -> EnvironmentState:
        session_id = self._binding.session_id
        if session_id is None:
            return EnvironmentState.CREATING
        if self._binding.is_destroyed:
            return EnvironmentState.DESTROYED
        try:
            await asyncio.to_thread(self._provider.note, session_id)
        except SessionNotFound:
            return EnvironmentState.DESTROYED
        is_paused = await asyncio.to_thread(self._provider.is_paused, session_id)
        return EnvironmentState.PAUSED if is_paused else EnvironmentState.ACTIVE

    async def capabilities(self) -> EnvironmentCapabilities:
        config = self._provider.config
        return EnvironmentCapabilities(
            pause=True,
            streaming_progress=True,
            max_session_duration_s=config.session_duration_s_max,
            concurrent_sessions=config.sessions_max,
        )

    async def tools(self) -> Sequence[Tool]:
        return catalogue()

    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        session_id = self._binding.need()
        await asyncio.to_thread(self._provider.note, session_id)
        if await asyncio.to_thread(self._provider.is_paused, session_id):
            raise SessionPaused(f"session {session_id} is paused", next_step="resume it", session_id=session_id)
        return await self._provider.calls(session_id).execute(request, on_progress)

    async def create_snapshot(self, name: str) -> Snapshot:
        raise self._no_snapshots(name)

    async def rollback(self, snapshot: str) -> None:
        raise self._no_snapshots(snapshot)

    def _no_snapshots(self, name: str) -> SnapshotsNotAvailable:
        return SnapshotsNotAvailable(
            f"session {self._binding.need()} is a plain directory: it has no snapshot {name!r}",
            next_step="use an environment on a host",
            capability="snapshots",
        )
