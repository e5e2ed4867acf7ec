"""An environment of whatever can make a sandbox, run a program in it, take a file and give one.

An adapter for a vendor has the verbs of `sandlot.contracts.VendorSandboxes` and `sandlot.contracts.VendorHands`, and
those of pause and snapshots where the vendor has them. All else is here: the tools, which session it is, what happens
once, time limits, and the end of what nobody waits for.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from weakref import WeakValueDictionary

from sandlot.contracts import (
    ExecutionEnvironment,
    Heard,
    OnProgress,
    VendorCommand,
    VendorHands,
    VendorPause,
    VendorSandboxes,
    VendorSnapshots,
)
from sandlot.environments import derived_scripts as scripts
from sandlot.environments.binding import Binding
from sandlot.environments.derived_files import DerivedFiles
from sandlot.environments.tool_calls import ToolCalls, catalogue
from sandlot.environments.wishes import check_life, refuse_others
from sandlot.model import (
    CallResult,
    CapabilityNotSupported,
    DeadlineExceeded,
    EnvironmentCapabilities,
    EnvironmentState,
    LimitHit,
    SandlotError,
    SessionNotFound,
    SessionSpec,
    Snapshot,
    SnapshotsNotAvailable,
    Stream,
    Tool,
    ToolRequest,
    ToolResult,
    Unavailable,
    limits,
    new_call_id,
    new_session_id,
)
from sandlot.model.ids import check_session_id
from sandlot.model.resources import NO_LIMITS
from sandlot.model.snapshot import check_given_name
from sandlot.tools.contained.command import Command
from sandlot.tools.contained.ending import END

_HELD = frozenset({"session_id", "timeout_s", "starts"})
_CREATE_S = 600.0
_ANSWER_S = 60.0
_TIMED_OUT = 124


class DerivedProvider:
    """Sandboxes of one vendor; environments are made of it."""

    def __init__(
        self,
        sandboxes: VendorSandboxes,
        hands: VendorHands,
        *,
        pause: VendorPause | None = None,
        snapshots: VendorSnapshots | None = None,
    ) -> None:
        self.sandboxes = sandboxes
        self.hands = hands
        self.pauses = pause
        self.snapshots = snapshots
        self._ends: dict[str, float] = {}
        self._calls: WeakValueDictionary[str, ToolCalls] = WeakValueDictionary()

    def environment(self) -> ExecutionEnvironment:
        """One without a session."""
        return DerivedEnvironment(self)

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        traits = self.sandboxes.traits
        return EnvironmentCapabilities(
            snapshots=self.snapshots is not None,
            rollback=self.snapshots is not None,
            pause=self.pauses is not None,
            streaming_progress=traits.streams,
            max_session_duration_s=traits.session_duration_s_max,
            concurrent_sessions=traits.sessions_max,
        )

    async def make(self, spec: SessionSpec) -> str:
        traits = self.sandboxes.traits
        refuse_others(spec, _HELD | traits.holds, traits.name)
        check_life(spec, traits.session_duration_s_max)
        session_id = spec.session_id or new_session_id()
        workspace = traits.directory(session_id)
        try:
            async with self.answering(f"make session {session_id}", _CREATE_S):
                await self.sandboxes.create(replace(spec, session_id=session_id))
        except (asyncio.CancelledError, Unavailable, DeadlineExceeded):
            # It may be there all the same. An id that was made here is nobody else's.
            if spec.session_id is None:
                await self._undo(session_id)
            raise
        self._ends[session_id] = time.monotonic() + spec.timeout_s
        try:
            command = VendorCommand(("/bin/sh", "-c", scripts.WORKSPACE, "sh", workspace), "/")
            async with self.answering(f"prepare session {session_id}"):
                code = await self.hands.execute(session_id, command, _deaf)
            if code:
                raise Unavailable(
                    f"{traits.name}: there is no directory {workspace} to work in (exit code {code})",
                    next_step="look whether the sandbox has a shell",
                )
        except BaseException:  # whatever it was: what cannot be used does not stay
            await self._undo(session_id)
            raise
        return session_id

    async def state(self, session_id: str) -> EnvironmentState:
        """Raises SessionNotFound. One whose time is up goes, where the vendor does not see to that."""
        check_session_id(session_id)
        async with self.answering(f"tell of session {session_id}"):
            if time.monotonic() >= self._ends.get(session_id, float("inf")):
                await self.remove(session_id)
            found = await self.sandboxes.state(session_id)
        if found is EnvironmentState.DESTROYED:
            raise SessionNotFound(f"there is no session {session_id}", session_id=session_id)
        return found

    async def remove(self, session_id: str) -> None:
        self._ends.pop(session_id, None)
        calls = self._calls.pop(session_id, None)
        if calls is not None:
            await calls.end()
        with suppress(SessionNotFound):  # whoever destroyed it, it is gone
            async with self.answering(f"destroy session {session_id}"):
                await self.sandboxes.destroy(session_id)

    async def _undo(self, session_id: str) -> None:
        """Also while it is cancelled, and never for long."""
        removing = asyncio.ensure_future(self.remove(session_id))
        removing.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may wait any more
        with suppress(SandlotError, TimeoutError):
            async with asyncio.timeout(limits.DESTROY_DEADLINE_S):
                await asyncio.shield(removing)

    @asynccontextmanager
    async def answering(self, what: str, deadline_s: float = _ANSWER_S) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(deadline_s):
                yield
        except TimeoutError as error:
            if isinstance(error, SandlotError):
                raise
            raise DeadlineExceeded(
                f"{self.sandboxes.traits.name} did not {what} within {deadline_s:g} s", next_step="look how it is"
            ) from error

    # ---- commands ----------------------------------------------------------------------------------------------

    def calls(self, session_id: str) -> ToolCalls:
        """The same for every environment of this session, so that a call is known to all of them."""
        found = self._calls.get(session_id)
        if found is None:
            traits = self.sandboxes.traits

            async def run(command: Command, request: ToolRequest, heard: Heard) -> CallResult:
                return await self._run(session_id, command, request, heard)

            files = DerivedFiles(self.hands, session_id, traits.directory(session_id), traits.name)
            found = self._calls[session_id] = ToolCalls(session_id, files, run)
        return found

    async def _run(self, session_id: str, command: Command, request: ToolRequest, heard: Heard) -> CallResult:
        traits = self.sandboxes.traits
        if (request.user is not None and not traits.users) or request.resources != NO_LIMITS:
            raise CapabilityNotSupported(
                f"commands of {traits.name} have its user and no limits of their own", next_step="leave them out"
            )
        mark = secrets.token_hex(12)
        envs = {**command.envs, "SANDLOT_CALL": mark}
        asked = VendorCommand(command.argv, traits.directory(session_id), envs, request.user, command.timeout_s)
        began, code, is_late = time.perf_counter(), _TIMED_OUT, False
        deadline = asyncio.timeout(command.timeout_s)
        try:
            async with deadline:
                code = await self.hands.execute(session_id, asked, heard)
        except TimeoutError as error:
            if isinstance(error, SandlotError) and not deadline.expired():
                await self._end(session_id, mark)
                raise
            is_late = True
            await self._end(session_id, mark)
        except (SessionNotFound, CapabilityNotSupported):
            raise
        except BaseException:  # whatever it was: what still runs is ended
            await self._end(session_id, mark)
            raise
        return CallResult(
            request.call_id or new_call_id(),
            code,
            signal=code - 128 if 128 < code < 128 + 65 and not is_late else None,
            limit=LimitHit.TIMEOUT if is_late else None,
            duration_s=time.perf_counter() - began,
        )

    async def _end(self, session_id: str, mark: str) -> None:
        """All that has the mark, also while this is cancelled, and never for long."""
        command = VendorCommand(("/bin/sh", "-c", END, "sh", mark), "/", timeout_s=limits.KILL_DEADLINE_S)
        ending = asyncio.ensure_future(self.hands.execute(session_id, command, _deaf))
        ending.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may wait any more
        with suppress(SandlotError, TimeoutError):
            async with asyncio.timeout(limits.KILL_DEADLINE_S):
                await asyncio.shield(ending)


async def _deaf(stream: Stream, data: bytes) -> None:
    del stream, data


class DerivedEnvironment:
    """The vendor knows everything but the id of the session and the fact that it was destroyed."""

    def __init__(self, provider: DerivedProvider) -> None:
        self._provider = provider
        self._binding = Binding()
        self._calls: ToolCalls | None = None  # held as long as someone has this session

    @property
    def session_id(self) -> str | None:
        return self._binding.session_id

    async def create(self, spec: SessionSpec) -> str:
        async with self._binding.begin():
            made = await self._provider.make(spec)
            self._bind(made)
        return made

    async def attach_session(self, session_id: str) -> None:
        async with self._binding.begin():
            await self._provider.state(session_id)
            self._bind(session_id)

    def _bind(self, session_id: str) -> None:
        self._binding.session_id = session_id
        self._calls = self._provider.calls(session_id)

    async def pause(self) -> None:
        session_id, pauses = self._binding.need(), self._pauses()
        async with self._provider.answering(f"pause session {session_id}"):
            await pauses.pause(session_id)

    async def resume(self) -> None:
        session_id, pauses = self._binding.need(), self._pauses()
        async with self._provider.answering(f"resume session {session_id}"):
            await pauses.resume(session_id)

    async def destroy(self) -> None:
        if self._binding.session_id is None or self._binding.is_destroyed:
            return
        await self._provider.remove(self._binding.session_id)
        self._binding.is_destroyed = True

    async def state(self) -> EnvironmentState:
        if self._binding.is_destroyed:
            return EnvironmentState.DESTROYED
        if self._binding.session_id is None:
            return EnvironmentState.CREATING
        try:
            return await self._provider.state(self._binding.session_id)
        except SessionNotFound:
            return EnvironmentState.DESTROYED

    async def capabilities(self) -> EnvironmentCapabilities:
        return self._provider.capabilities

    async def tools(self) -> Sequence[Tool]:
        return catalogue()

    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        session_id = self._binding.need()
        calls = self._calls or self._provider.calls(session_id)
        return await calls.execute(request, on_progress)

    async def create_snapshot(self, name: str) -> Snapshot:
        session_id, snapshots = self._binding.need(), self._snapshots()
        check_given_name(name)
        async with self._provider.answering(f"take a snapshot of session {session_id}", _CREATE_S):
            return await snapshots.create_snapshot(session_id, name)

    async def rollback(self, snapshot: str) -> None:
        session_id, snapshots = self._binding.need(), self._snapshots()
        async with self._provider.answering(f"roll session {session_id} back", _CREATE_S):
            await snapshots.rollback(session_id, snapshot)

    def _pauses(self) -> VendorPause:
        if self._provider.pauses is None:
            raise CapabilityNotSupported(
                f"{self._provider.sandboxes.traits.name} has no pause",
                next_step="let it go on, or destroy it",
                capability="pause",
            )
        return self._provider.pauses

    def _snapshots(self) -> VendorSnapshots:
        if self._provider.snapshots is None:
            raise SnapshotsNotAvailable(
                f"{self._provider.sandboxes.traits.name} has no snapshots",
                next_step="use an environment on a host",
                capability="snapshots",
            )
        return self._provider.snapshots
