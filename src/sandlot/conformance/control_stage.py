"""A control with a sandbox, where promises are tried out, and how checks are run on it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sandlot.conformance.checks import Broken, Check, Outcome, judge
from sandlot.conformance.environment_stage import refuses
from sandlot.contracts import SandboxControl
from sandlot.model import (
    CreateSandboxRequest,
    CreateSandboxResponse,
    GetProcessStatusRequest,
    GetProcessStatusResponse,
    KillProcessRequest,
    LaunchProcessRequest,
    LaunchProcessResponse,
    ProcessState,
    SandboxCapabilities,
    SandlotError,
)

FreshControl = Callable[[], SandboxControl]  # another object on the same provider
Count = Callable[[], Awaitable[int]]  # how many sandboxes the provider has
DEADLINE_S = 60.0  # for a check; whoever waits for nothing is slower than that
_POLL_S = 0.02

# Takes connections at its port and says one word to each. What is launched to be reached.
SERVER = (
    "import socket, sys\n"
    "listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
    "while True:\n"
    "    line = listener.accept()[0]\n"
    "    line.sendall(b'here')\n"
    "    line.close()\n"
)
SAID = b"here"


@dataclass(slots=True)
class ControlStage:
    control: SandboxControl
    fresh: FreshControl
    sandbox: CreateSandboxResponse  # that nobody else knows
    count: Count | None = None
    made: list[str] = field(default_factory=list[str])

    @property
    def id(self) -> str:
        return self.sandbox.sandbox_id

    @property
    def able(self) -> SandboxCapabilities:
        return self.sandbox.capabilities

    async def create(self, control: SandboxControl | None = None, **wishes: Any) -> CreateSandboxResponse:
        """One more; it goes with the stage."""
        made = await (control or self.control).create_sandbox(CreateSandboxRequest(**wishes))
        self.made.append(made.sandbox_id)
        return made

    async def launch(
        self, binary: str, *args: str, sandbox_id: str | None = None, **options: Any
    ) -> LaunchProcessResponse:
        request = LaunchProcessRequest(sandbox_id or self.id, binary, args, **options)
        return await self.control.launch_process(request)

    async def status(self, process_id: str, sandbox_id: str | None = None) -> GetProcessStatusResponse:
        return await self.control.get_process_status(GetProcessStatusRequest(sandbox_id or self.id, process_id))

    async def kill(self, process_id: str, signal: int | None = None, sandbox_id: str | None = None) -> None:
        await self.control.kill_process(KillProcessRequest(sandbox_id or self.id, process_id, signal))

    async def wait(self, process_id: str, state: ProcessState, sandbox_id: str | None = None) -> int | None:
        """Until it is in this state, which tells its exit code. The check's own deadline ends the waiting."""
        while (now := await self.status(process_id, sandbox_id)).status is not state:
            if now.status is ProcessState.EXITED:
                raise Broken(f"the process ended with {now.exit_code}: {now.reason}")
            await asyncio.sleep(_POLL_S)
        return now.exit_code

    async def code_of(self, binary: str, *args: str, **options: Any) -> int | None:
        """Of a program that ends by itself."""
        launched = await self.launch(binary, *args, **options)
        return await self.wait(launched.process_id, ProcessState.EXITED, options.get("sandbox_id"))

    async def refuses_and_leaves_nothing(self, work: Awaitable[object], *kinds: type[SandlotError]) -> None:
        before = await self.count() if self.count else 0
        await refuses(work, *kinds)
        after = await self.count() if self.count else 0
        if after != before:
            raise Broken(f"there were {before} sandboxes, and after a refusal there are {after}")


async def dial(address: str) -> bytes:
    """What whoever listens there says."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        return await reader.read(100)
    finally:
        writer.close()


def abilities(told: SandboxCapabilities) -> frozenset[str]:
    """Those that decide which checks are run."""
    names = ("pause", "pause_keeps_processes", "launch_process", "expose_port")
    return frozenset(name for name in names if getattr(told, name))


async def run_checks(
    fresh: FreshControl,
    checks: Sequence[Check[ControlStage]],
    deviations: Mapping[str, str] | None = None,
    count: Count | None = None,
    *,
    deadline_s: float = DEADLINE_S,
) -> AsyncIterator[Outcome]:
    """Each check with an object and a sandbox of its own. Nothing is left of the checks."""

    async def attempt(check: Check[ControlStage]) -> None:
        control = fresh()
        made: list[str] = []
        try:
            async with asyncio.timeout(deadline_s):
                sandbox = await control.create_sandbox(CreateSandboxRequest())
                made.append(sandbox.sandbox_id)
                await check.run(ControlStage(control, fresh, sandbox, count, made))
        except TimeoutError as error:
            if isinstance(error, SandlotError):
                raise
            raise Broken(f"it took longer than {deadline_s:g} s") from error
        finally:
            for sandbox_id in made:
                with suppress(SandlotError, TimeoutError):
                    async with asyncio.timeout(deadline_s):
                        await fresh().destroy_sandbox(sandbox_id)

    try:
        have = await _declared(fresh(), deadline_s)
    except (SandlotError, TimeoutError) as error:
        raise Broken(f"no sandbox can be made, or it does not tell what it can do: {error!r}") from error
    async for outcome in judge(checks, deviations or {}, have, attempt):
        yield outcome


async def _declared(control: SandboxControl, deadline_s: float) -> frozenset[str]:
    async with asyncio.timeout(deadline_s):
        made = await control.create_sandbox(CreateSandboxRequest())
        await control.destroy_sandbox(made.sandbox_id)
        return abilities(made.capabilities)
