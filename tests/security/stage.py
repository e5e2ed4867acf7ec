"""An engine on a thread of its own: tests that share its sessions are plain functions."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from sandlot.config.settings import load
from sandlot.host.service import SandboxHostService
from sandlot.model import CallOutput, CallRequest, SessionSpec, Stream
from sandlot.wiring.embedded import build
from tests.conftest import Ran, clean_up

PATIENCE_S = 40.0
ROOT = "root"
USER = "user"


Result = TypeVar("Result")


async def _run(host: SandboxHostService, request: CallRequest, stdin: bytes) -> Ran:
    streams = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
    async with host.call(request) as events:
        if request.stdin:
            await events.write_stdin(stdin)
            await events.close_stdin()
        async for event in events:
            if isinstance(event, CallOutput):
                streams[event.stream] += event.data
        return Ran(await events.result(), bytes(streams[Stream.STDOUT]), bytes(streams[Stream.STDERR]))


class Stage:
    """`mark` stands in the environment of the engine: nothing inside a session may know it."""

    def __init__(self, data: Path, mark: str) -> None:
        self.mark = mark
        self.data = data
        self._loop: asyncio.AbstractEventLoop | None = None
        self._host: SandboxHostService | None = None
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stage", daemon=True)

    def __enter__(self) -> "Stage":
        self._thread.start()
        self._ready.wait()
        if self._failure:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop
        assert self._stop
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._failure:
            raise self._failure

    @property
    def host(self) -> SandboxHostService:
        assert self._host
        return self._host

    def wait(self, work: Coroutine[object, object, Result]) -> Result:
        """Do something on the engine's loop, and wait here for the end."""
        assert self._loop
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def create(self) -> str:
        return self.wait(self.host.create(SessionSpec())).session_id

    def run(self, request: CallRequest, stdin: bytes = b"") -> Ran:
        return self.wait(_run(self.host, request, stdin))

    def begin(self, request: CallRequest) -> "Future[Ran]":
        """Start a call and go on; `result()` waits for its end."""
        assert self._loop
        return asyncio.run_coroutine_threadsafe(_run(self.host, request, b""), self._loop)

    def begin_script(self, session: str, script: str, user: str) -> "Future[Ran]":
        return self.begin(CallRequest(session, ("python3", "-c", script), user=user, timeout_s=PATIENCE_S / 2))

    def shell(self, session: str, script: str, user: str = ROOT) -> str:
        """Run a script that must succeed, and give what it said."""
        ran = self.run(CallRequest(session, ("sh", "-c", script), user=user, timeout_s=PATIENCE_S / 2))
        assert ran.exit_code == 0, ran
        return ran.stdout.decode()

    def place(self, session: str, path: str, content: bytes) -> None:
        """Put a program into a session, through the same door that its user has."""
        ran = self.run(
            CallRequest(session, ("sh", "-c", 'cat >"$0" && chmod 755 "$0"', path), user=ROOT, stdin=True), content
        )
        assert ran.exit_code == 0, ran

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that waits for us
            self._failure = error
        finally:
            self._ready.set()

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        environment = {**os.environ, "SANDLOT_DATA_DIR": str(self.data), "SANDLOT_STORAGE": "", "SANDLOT_RUNTIME": ""}
        async with build(load(environment)) as self._host:
            self._ready.set()
            await self._stop.wait()
            await clean_up(self._host)
