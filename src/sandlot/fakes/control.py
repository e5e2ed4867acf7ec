"""Sandboxes in memory, for tests of orchestrators.

The programs that it understands are few, and any other is not found: `sleep S`; `sh -c` with `exit N`, `exit $NAME`,
`test "$NAME" = 'TEXT'`, or a loop that takes no TERM; `python3 -c`, which takes the memory that it multiplies
bytes to, or with an exposed port says `here` to whoever dials it.
"""

import asyncio
import itertools
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sandlot.contracts import SandboxControl
from sandlot.model import (
    CapabilityNotSupported,
    Conflict,
    CreateSandboxRequest,
    CreateSandboxResponse,
    GetProcessStatusRequest,
    GetProcessStatusResponse,
    KillProcessRequest,
    LaunchProcessRequest,
    LaunchProcessResponse,
    LimitReached,
    MaxSessionsReached,
    ProcessNotFound,
    ProcessState,
    SandboxCapabilities,
    SessionNotFound,
    SessionPaused,
    StartFailed,
    TemplateNotFound,
    check_sandbox_id,
    limits,
    new_session_id,
)

TEMPLATE = "memory"
_EXIT_CODE = re.compile(r"exit (\d+)")
_EXIT_VARIABLE = re.compile(r"exit \$(\w+)")
_TEST = re.compile(r"""test "\$(\w+)" = '(.*)'""")
_TAKEN = re.compile(r"b'x' \* (\d+)")
_KILLED, _TERMINATED = 137, 143


@dataclass(eq=False)
class FakeProcess:
    process_id: str
    argv: tuple[str, ...]
    ends: float = float("inf")
    code: int = 0  # when it ends by itself
    ended_with: int | None = None
    takes_no_term: bool = False
    address: str = ""
    server: asyncio.Server | None = None

    def look(self, now: float) -> GetProcessStatusResponse:
        if self.ended_with is None and now >= self.ends:
            self.end(self.code)
        state = ProcessState.RUNNING if self.ended_with is None else ProcessState.EXITED
        return GetProcessStatusResponse(state, self.ended_with)

    def end(self, code: int) -> None:
        if self.ended_with is None:
            self.ended_with = code
        if self.server is not None:
            self.server.close()


@dataclass(eq=False)
class FakeSandbox:
    sandbox_id: str
    request: CreateSandboxRequest
    ends: float
    processes: dict[str, FakeProcess] = field(default_factory=dict[str, FakeProcess])
    paused_at: float | None = None

    def now(self) -> float:
        """Its own time stands still while it is paused."""
        return time.monotonic() if self.paused_at is None else self.paused_at


class FakeSandboxes:
    """Whoever has many sandboxes; controls are made of it."""

    def __init__(self, capabilities: SandboxCapabilities | None = None, memory_bytes: bool = True) -> None:
        self.sandboxes: dict[str, FakeSandbox] = {}
        self.requested: dict[str, str] = {}
        self.holds_memory = memory_bytes
        self.capabilities = capabilities or SandboxCapabilities(
            pause=True,
            pause_keeps_processes=True,
            launch_process=True,
            expose_port=True,
            sandbox_duration_s_max=limits.SESSION_LIFETIME_S_MAX,
        )
        self._numbers = itertools.count(1)

    def control(self) -> SandboxControl:
        return FakeControl(self)

    async def count(self) -> int:
        self._expire()
        return len(self.sandboxes)

    def make(self, request: CreateSandboxRequest) -> FakeSandbox:
        self._expire()
        known = self.sandboxes.get(self.requested.get(request.request_id or "", ""))
        if known is not None:
            return known
        most, timeout_s = self.capabilities, request.timeout_s or limits.SESSION_LIFETIME_S
        if request.template not in (None, TEMPLATE):
            raise TemplateNotFound(f"there is no template {request.template}", next_step="leave it out")
        missing = [name for name in request.resources.asked() if name != "memory_bytes" or not self.holds_memory]
        if missing:
            raise CapabilityNotSupported(f"nothing holds {missing[0]} here", next_step="leave it out")
        if most.sandbox_duration_s_max is not None and timeout_s > most.sandbox_duration_s_max:
            raise LimitReached(f"a sandbox lives for at most {most.sandbox_duration_s_max:g} s")
        if most.concurrent_sandboxes and len(self.sandboxes) >= most.concurrent_sandboxes:
            raise MaxSessionsReached(f"there are {len(self.sandboxes)} sandboxes already", next_step="destroy one")
        made = FakeSandbox(new_session_id(), request, time.monotonic() + timeout_s)
        self.sandboxes[made.sandbox_id] = made
        if request.request_id is not None:
            self.requested[request.request_id] = made.sandbox_id
        return made

    def find(self, sandbox_id: str) -> FakeSandbox:
        self._expire()
        found = self.sandboxes.get(check_sandbox_id(sandbox_id))
        if found is None:
            raise SessionNotFound(f"there is no sandbox {sandbox_id}", session_id=sandbox_id)
        return found

    def remove(self, sandbox: FakeSandbox) -> None:
        self.sandboxes.pop(sandbox.sandbox_id, None)
        for process in sandbox.processes.values():
            process.end(_KILLED)

    def new_process_id(self) -> str:
        return f"p-{next(self._numbers)}"

    def _expire(self) -> None:
        now = time.monotonic()
        for sandbox in [one for one in self.sandboxes.values() if now >= one.ends]:
            self.remove(sandbox)


class FakeControl:
    """It keeps nothing itself."""

    def __init__(self, provider: FakeSandboxes) -> None:
        self.provider = provider

    async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
        made = self.provider.make(request)
        return CreateSandboxResponse(made.sandbox_id, "", self.provider.capabilities)

    async def destroy_sandbox(self, sandbox_id: str) -> None:
        with suppress(SessionNotFound):
            self.provider.remove(self.provider.find(sandbox_id))

    async def launch_process(self, request: LaunchProcessRequest) -> LaunchProcessResponse:
        sandbox = self.provider.find(request.sandbox_id)
        self._need("launch_process", self.provider.capabilities.launch_process)
        self._need("expose_port", self.provider.capabilities.expose_port or request.expose_port is None)
        if sandbox.paused_at is not None:
            raise SessionPaused(f"sandbox {sandbox.sandbox_id} is paused", next_step="resume it")
        argv = (request.binary, *request.args)
        process = sandbox.processes.get(request.process_id or "")
        if process is None:
            process = _begin(request.process_id or self.provider.new_process_id(), argv, request, sandbox)
            sandbox.processes[process.process_id] = process
            if request.expose_port is not None:
                await _serve(process)
        elif process.argv != argv:
            raise Conflict(f"process {process.process_id} is another program", next_step="give another id")
        return LaunchProcessResponse(process.process_id, process.address, process.look(sandbox.now()).status)

    async def kill_process(self, request: KillProcessRequest) -> None:
        sandbox, process = self._process(request.sandbox_id, request.process_id)
        if sandbox.paused_at is not None:
            raise SessionPaused(f"sandbox {sandbox.sandbox_id} is paused", next_step="resume it")
        if process.look(sandbox.now()).status is ProcessState.EXITED:
            return
        if request.signal is None:
            process.end(_KILLED if process.takes_no_term else _TERMINATED)
        elif not (process.takes_no_term and request.signal == _TERMINATED - 128):
            process.end(128 + request.signal)

    async def get_process_status(self, request: GetProcessStatusRequest) -> GetProcessStatusResponse:
        sandbox, process = self._process(request.sandbox_id, request.process_id)
        return process.look(sandbox.now())

    async def pause_sandbox(self, sandbox_id: str) -> None:
        sandbox = self.provider.find(sandbox_id)
        self._need("pause", self.provider.capabilities.pause)
        if not self.provider.capabilities.pause_keeps_processes:
            for process in sandbox.processes.values():
                process.end(_KILLED)
        sandbox.paused_at = sandbox.now()

    async def resume_sandbox(self, sandbox_id: str) -> None:
        sandbox = self.provider.find(sandbox_id)
        if sandbox.paused_at is not None:
            stood = time.monotonic() - sandbox.paused_at
            sandbox.paused_at = None
            for process in sandbox.processes.values():
                process.ends += stood

    async def capabilities(self) -> SandboxCapabilities:
        return self.provider.capabilities

    def _process(self, sandbox_id: str, process_id: str) -> tuple[FakeSandbox, FakeProcess]:
        sandbox = self.provider.find(sandbox_id)
        if process_id not in sandbox.processes:
            raise ProcessNotFound(f"sandbox {sandbox_id} has no process {process_id}", process_id=process_id)
        return sandbox, sandbox.processes[process_id]

    def _need(self, name: str, is_there: bool) -> None:
        if not is_there:
            raise CapabilityNotSupported(f"these sandboxes have no {name}", capability=name)


def _begin(process_id: str, argv: Sequence[str], request: LaunchProcessRequest, sandbox: FakeSandbox) -> FakeProcess:
    """Raises StartFailed for a program that the fake does not know."""
    now, script = sandbox.now(), argv[2] if len(argv) > 2 else ""
    name, rest = argv[0], list(argv[1:])
    process = FakeProcess(process_id, tuple(argv))
    match [name.rpartition("/")[2], *rest]:
        case ["sleep", seconds]:
            process.ends = now + float(seconds)
        case ["sh", "-c", _, *_words] if found := _EXIT_CODE.fullmatch(script):
            process.ends, process.code = now, int(found[1])
        case ["sh", "-c", _, *_words] if found := _EXIT_VARIABLE.fullmatch(script):
            process.ends, process.code = now, int(request.envs.get(found[1], "0"))
        case ["sh", "-c", _, *_words] if found := _TEST.fullmatch(script):
            process.ends, process.code = now, int(request.envs.get(found[1]) != found[2])
        case ["sh", "-c", _, *_words] if script.startswith("trap '' TERM;"):
            process.takes_no_term = True
        case ["python3", "-c", _, *_words] if found := _TAKEN.search(script):
            most = sandbox.request.resources.memory_bytes
            process.ends, process.code = now, _KILLED if most is not None and int(found[1]) > most else 0
        case ["python3", "-c", _, *_words]:
            pass
        case _:
            raise StartFailed(f"{name} is no program of the fake", next_step="use one of its few")
    return process


async def _serve(process: FakeProcess) -> None:
    async def say(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if process.ended_with is None:
            writer.write(b"here")
        writer.close()

    process.server = await asyncio.start_server(say, "127.0.0.1", 0)
    process.address = f"127.0.0.1:{process.server.sockets[0].getsockname()[1]}"
