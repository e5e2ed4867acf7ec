"""Processes, terminals, code and metrics of a host that is elsewhere."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from sandlot.model import (
    CodeContext,
    CodeRequest,
    ContextRequest,
    ExposedPort,
    ExposeRequest,
    HostSample,
    MetricsRequest,
    Preview,
    PreviewRequest,
    Process,
    ProcessLogs,
    ProcessOutput,
    ProcessSpec,
    ProcessState,
    SessionSample,
    Stream,
    Terminal,
    TerminalAttach,
    TerminalInput,
    TerminalKill,
    TerminalRequest,
    TerminalResize,
    new_call_id,
)
from sandlot.rpc.asking import Asking
from sandlot.rpc.convert import from_message, to_message
from sandlot.rpc.gen.sandlot.v1 import processes_pb
from sandlot.rpc.link import follow
from sandlot.rpc.messages import AnyMessage
from sandlot.rpc.ports import RemotePort
from sandlot.rpc.remote import RemoteCode, RemoteTerminal


class RemotePrograms:
    def __init__(self, ask: Asking) -> None:
        self._ask = ask

    # ---- processes ---------------------------------------------------------------------------------------------------

    async def launch_process(self, spec: ProcessSpec) -> Process:
        return await self._ask.value("LaunchProcess", spec)

    async def list_processes(self, session_id: str) -> Sequence[Process]:
        return await self._ask.named("ListProcesses", session_id=session_id)

    async def process_status(self, session_id: str, process_id: str) -> Process:
        return await self._ask.named("GetProcessStatus", session_id=session_id, process_id=process_id)

    async def write_process_stdin(self, session_id: str, process_id: str, data: bytes) -> None:
        return await self._ask.named("WriteProcessStdin", session_id=session_id, process_id=process_id, data=data)

    async def close_process_stdin(self, session_id: str, process_id: str) -> None:
        return await self._ask.named("CloseProcessStdin", session_id=session_id, process_id=process_id)

    async def kill_process(self, session_id: str, process_id: str, signal: int | None = None) -> Process:
        return await self._ask.named("KillProcess", session_id=session_id, process_id=process_id, signal=signal)

    async def wait_process(
        self,
        session_id: str,
        process_id: str,
        *,
        until: ProcessState = ProcessState.EXITED,
        timeout_s: float | None = None,
    ) -> Process:
        return await self._ask.named(
            "WaitProcess", session_id=session_id, process_id=process_id, until=until, timeout_s=timeout_s
        )

    async def expose_port(self, request: ExposeRequest) -> ExposedPort:
        return await self._ask.value("ExposePort", request)

    async def list_ports(self, session_id: str) -> Sequence[ExposedPort]:
        return await self._ask.named("ListPorts", session_id=session_id)

    async def unexpose_port(self, session_id: str, port: int) -> None:
        return await self._ask.named("UnexposePort", session_id=session_id, port=port)

    async def preview_port(self, request: PreviewRequest) -> Preview:
        return await self._ask.value("PreviewPort", request)

    @asynccontextmanager
    async def process_logs(self, request: ProcessLogs) -> AsyncGenerator[AsyncIterator[ProcessOutput]]:
        seen = {Stream.STDOUT: request.stdout_from, Stream.STDERR: request.stderr_from}
        incoming, _ = await self._ask.link.begin("StreamProcessLogs", to_message(request))

        def again() -> AnyMessage:
            return to_message(replace(request, stdout_from=seen[Stream.STDOUT], stderr_from=seen[Stream.STDERR]))

        async def told() -> AsyncGenerator[ProcessOutput]:
            async for message in follow(self._ask.link, "StreamProcessLogs", incoming, again):
                assert isinstance(message, processes_pb.LogMessage)
                if message.output is not None:
                    output: ProcessOutput = from_message(message.output)
                    seen[output.stream] = output.offset + len(output.data)
                    yield output

        try:
            yield told()
        finally:
            incoming.close()

    @asynccontextmanager
    async def connect_port(self, session_id: str, port: int) -> AsyncGenerator[RemotePort]:
        stream = RemotePort(self._ask.link, session_id, port)
        await stream.enter()
        try:
            yield stream
        finally:
            stream.leave()

    # ---- terminals ---------------------------------------------------------------------------------------------------

    async def open_terminal(self, request: TerminalRequest) -> Terminal:
        return await self._ask.value("OpenTerminal", request)

    async def terminals(self, session_id: str) -> Sequence[Terminal]:
        return await self._ask.named("ListTerminals", session_id=session_id)

    async def get_terminal(self, session_id: str, terminal_id: str) -> Terminal:
        return await self._ask.named("GetTerminal", session_id=session_id, terminal_id=terminal_id)

    async def write_terminal(self, request: TerminalInput) -> None:
        return await self._ask.value("WriteTerminal", request)

    async def resize_terminal(self, request: TerminalResize) -> None:
        return await self._ask.value("ResizeTerminal", request)

    async def kill_terminal(self, request: TerminalKill) -> None:
        return await self._ask.value("KillTerminal", request)

    @asynccontextmanager
    async def attach_terminal(self, request: TerminalAttach) -> AsyncGenerator[RemoteTerminal]:
        stream = RemoteTerminal(self._ask.link, request)
        await stream.enter()
        try:
            yield stream
        finally:
            stream.leave()

    # ---- code --------------------------------------------------------------------------------------------------------

    async def create_context(self, request: ContextRequest) -> CodeContext:
        return await self._ask.value("CreateContext", request)

    async def contexts(self, session_id: str) -> Sequence[CodeContext]:
        return await self._ask.named("ListContexts", session_id=session_id)

    async def interrupt_context(self, session_id: str, context_id: str) -> bool:
        return await self._ask.named("InterruptContext", session_id=session_id, context_id=context_id)

    async def restart_context(self, session_id: str, context_id: str) -> CodeContext:
        return await self._ask.named("RestartContext", session_id=session_id, context_id=context_id)

    async def delete_context(self, session_id: str, context_id: str) -> None:
        return await self._ask.named("DeleteContext", session_id=session_id, context_id=context_id)

    @asynccontextmanager
    async def run_code(self, request: CodeRequest) -> AsyncGenerator[RemoteCode]:
        execution_id = request.execution_id or new_call_id()
        started = replace(request, execution_id=execution_id)
        stream = RemoteCode(self._ask.link, request.session_id, execution_id, started)
        await stream.enter()
        try:
            yield stream
        finally:
            await stream.leave()

    @asynccontextmanager
    async def attach_code(self, session_id: str, execution_id: str) -> AsyncGenerator[RemoteCode]:
        stream = RemoteCode(self._ask.link, session_id, execution_id, None)
        await stream.enter()
        try:
            yield stream
        finally:
            await stream.leave()

    # ---- metrics -----------------------------------------------------------------------------------------------------

    async def session_metrics(self, request: MetricsRequest) -> Sequence[SessionSample]:
        return await self._ask.value("SessionMetrics", request)

    async def host_metrics(self, request: MetricsRequest) -> Sequence[HostSample]:
        return await self._ask.value("HostMetrics", request)

    async def all_metrics(self) -> Sequence[SessionSample]:
        return await self._ask.named("AllMetrics")
