"""A vendor whose sandboxes are directories of this machine, reached by nothing but a program, an upload and a download.
Which programs it has is chosen: those of this machine, or those of busybox alone."""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from sandlot.contracts import Heard, VendorCommand, VendorTraits
from sandlot.model import (
    EnvironmentState,
    FileNotFound,
    MaxSessionsReached,
    PermissionDenied,
    SessionExists,
    SessionNotFound,
    SessionPaused,
    SessionSpec,
    Stream,
)


class ShellVendor:
    def __init__(self, top: Path, programs: Path | None = None, *, sessions_max: int = 0, streams: bool = True) -> None:
        self._top = top
        self._programs = programs
        self._running: dict[str, set[int]] = {}
        self.paused: set[str] = set()
        self.commands = 0
        self.traits = VendorTraits(
            "a shell",
            str(top / "{session_id}"),
            streams=streams,
            sessions_max=sessions_max,
            session_duration_s_max=100_000.0,
        )
        self.sessions: dict[str, Path] = {}

    # ---- sandboxes ---------------------------------------------------------------------------------------------

    async def create(self, spec: SessionSpec) -> None:
        session_id = str(spec.session_id)
        if session_id in self.sessions:
            raise SessionExists(f"{session_id} is there")
        if 0 < self.traits.sessions_max <= len(self.sessions):
            raise MaxSessionsReached("there are enough")
        self.sessions[session_id] = self._top / session_id
        self.sessions[session_id].mkdir(parents=True)

    async def state(self, session_id: str) -> EnvironmentState:
        self._find(session_id)
        return EnvironmentState.PAUSED if session_id in self.paused else EnvironmentState.ACTIVE

    async def destroy(self, session_id: str) -> None:
        path = self._find(session_id)
        for pid in tuple(self._running.get(session_id, ())):
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        del self.sessions[session_id]
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

    async def pause(self, session_id: str) -> None:
        self._find(session_id)
        self.paused.add(session_id)

    async def resume(self, session_id: str) -> None:
        self._find(session_id)
        self.paused.discard(session_id)

    def _find(self, session_id: str) -> Path:
        if session_id not in self.sessions:
            raise SessionNotFound(f"there is no {session_id}")
        return self.sessions[session_id]

    # ---- hands -------------------------------------------------------------------------------------------------

    def _ready(self, session_id: str) -> None:
        self._find(session_id)
        if session_id in self.paused:
            raise SessionPaused(f"{session_id} is paused")

    async def execute(self, session_id: str, command: VendorCommand, heard: Heard) -> int:
        self.commands += 1
        self._ready(session_id)
        argv = list(command.argv)
        path = str(self._programs) if self._programs else "/usr/local/bin:/usr/bin:/bin"
        if self._programs:
            argv[0] = str(self._programs / Path(argv[0]).name)
        if self._programs and not Path(argv[0]).exists():
            return 127
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=command.cwd,
            env={"PATH": path, "HOME": str(self.sessions[session_id]), **command.envs},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        running = self._running.setdefault(session_id, set())
        running.add(process.pid)
        assert process.stdout
        assert process.stderr
        pipes = ((Stream.STDOUT, process.stdout), (Stream.STDERR, process.stderr))
        try:
            await asyncio.gather(*(self._hear(stream, pipe, heard) for stream, pipe in pipes))
            code = await process.wait()
        finally:  # who is cancelled leaves it running, as vendors do
            running.discard(process.pid)
        if session_id not in self.sessions:
            raise SessionNotFound(f"{session_id} is gone")
        return code if code >= 0 else 128 - code

    async def _hear(self, stream: Stream, pipe: asyncio.StreamReader, heard: Heard) -> None:
        kept = b""
        while data := await pipe.read(65536):
            if self.traits.streams:
                await heard(stream, data)
            else:
                kept += data
        if kept:
            await heard(stream, kept)

    async def upload(self, session_id: str, path: str, content: AsyncIterable[bytes]) -> None:
        self._ready(session_id)
        try:
            with Path(path).open("wb") as file:
                async for piece in content:
                    file.write(piece)
        except FileNotFoundError:
            raise FileNotFound(f"{path} is not there") from None

    @asynccontextmanager
    async def download(self, session_id: str, path: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        self._ready(session_id)
        try:
            with Path(path).open("rb") as file:
                yield _pieces(file.read())
        except FileNotFoundError:
            raise FileNotFound(f"{path} is not there") from None
        except PermissionError as error:
            raise PermissionDenied(f"{path}: {error.strerror}") from None


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), 10_000):
        yield content[at : at + 10_000]


def busybox(directory: Path) -> Path:
    """A directory with the programs of busybox and no others."""
    directory.mkdir()
    found = shutil.which("busybox")
    assert found
    listed = subprocess.run([found, "--list"], check=True, capture_output=True, text=True)
    for name in listed.stdout.split():
        (directory / name).symlink_to(found)
    return directory


def bare(directory: Path) -> Path:
    """A directory with few programs: none that tells of files or packs them."""
    directory.mkdir()
    names = [
        "sh",
        "cat",
        "chmod",
        "chown",
        "cp",
        "cut",
        "find",
        "head",
        "ln",
        "ls",
        "mkdir",
        "mkfifo",
        "mv",
        "printf",
        "rm",
        "sleep",
        "tail",
        "touch",
        "tr",
        "wc",
    ]
    for name in names:
        found = shutil.which("dash" if name == "sh" else name)
        assert found, name
        (directory / name).symlink_to(found)
    return directory
