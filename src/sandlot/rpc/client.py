"""The client: a host that is elsewhere, with the verbs of one that is here."""

import ssl
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from sandlot.model import (
    CallRecord,
    CallRequest,
    Capability,
    Change,
    CordonRequest,
    DiffRequest,
    Event,
    EventFilter,
    Examination,
    ExportRequest,
    ForkRequest,
    Health,
    ImportRequest,
    MoveProgress,
    MoveRequest,
    PauseRequest,
    RelabelRequest,
    RollbackRequest,
    SessionFilter,
    SessionInfo,
    SessionPage,
    SessionSpec,
    Snapshot,
    SnapshotRequest,
    TemplateEvent,
    TemplateInfo,
    TemplateRequest,
    Tool,
    ToolRequest,
    Turn,
    TurnRequest,
    VolumeInfo,
    VolumeSpec,
    limits,
    new_call_id,
)
from sandlot.rpc.asking import Asking
from sandlot.rpc.convert import from_choice, from_message, to_choice, to_message
from sandlot.rpc.gen.sandlot.v1 import common_pb, moving_pb, templates_pb
from sandlot.rpc.link import Link
from sandlot.rpc.messages import AnyMessage
from sandlot.rpc.remote import RemoteCall, RemoteExport, RemoteTool
from sandlot.rpc.remote_files import RemoteFiles, batches, upload
from sandlot.rpc.remote_programs import RemotePrograms
from sandlot.rpc.transport import Pool


class HostClient:
    """A host at a URL: `http://HOST:PORT`, `https://HOST:PORT`, or `unix:///PATH` of a socket.

    Connections are made when they are needed. A server that goes away and comes back within `reconnect_s` is not
    noticed: what can be repeated is repeated, streams go on where they were. Everything else raises Unavailable when it
    is not known whether it was done.

    `tls` says which servers are trusted, and who the client is. Raises InvalidArgument for what is no URL."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        reconnect_s: float = limits.RECONNECT_S,
    ) -> None:
        told = {"x-api-version": "1", **(headers or {})}
        if api_key is not None:
            told["authorization"] = f"Bearer {api_key}"
        self.url = url
        self._pool = Pool(url, told, tls)
        self._link = Link(self._pool, url, reconnect_s)
        self._ask = ask = Asking(self._link)
        files, programs = RemoteFiles(ask), RemotePrograms(ask)
        self.replace_in_file = files.replace_in_file
        self.copy_file = files.copy_file
        self.change_file = files.change_file
        self.make_link = files.make_link
        self.get_attributes = files.get_attributes
        self.set_attributes = files.set_attributes
        self.measure_files = files.measure_files
        self.stat_file = files.stat_file
        self.make_directory = files.make_directory
        self.rename_file = files.rename_file
        self.remove_file = files.remove_file
        self.read_file = files.read_file
        self.read_lines = files.read_lines
        self.list_files = files.list_files
        self.find_files = files.find_files
        self.search_files = files.search_files
        self.watch_files = files.watch_files
        self.download_tree = files.download_tree
        self.write_file = files.write_file
        self.append_file = files.append_file
        self.upload_tree = files.upload_tree
        self.launch_process = programs.launch_process
        self.list_processes = programs.list_processes
        self.process_status = programs.process_status
        self.write_process_stdin = programs.write_process_stdin
        self.close_process_stdin = programs.close_process_stdin
        self.kill_process = programs.kill_process
        self.wait_process = programs.wait_process
        self.expose_port = programs.expose_port
        self.list_ports = programs.list_ports
        self.unexpose_port = programs.unexpose_port
        self.preview_port = programs.preview_port
        self.connect_port = programs.connect_port
        self.process_logs = programs.process_logs
        self.open_terminal = programs.open_terminal
        self.terminals = programs.terminals
        self.get_terminal = programs.get_terminal
        self.write_terminal = programs.write_terminal
        self.resize_terminal = programs.resize_terminal
        self.kill_terminal = programs.kill_terminal
        self.attach_terminal = programs.attach_terminal
        self.create_context = programs.create_context
        self.contexts = programs.contexts
        self.interrupt_context = programs.interrupt_context
        self.restart_context = programs.restart_context
        self.delete_context = programs.delete_context
        self.run_code = programs.run_code
        self.attach_code = programs.attach_code
        self.session_metrics = programs.session_metrics
        self.host_metrics = programs.host_metrics
        self.all_metrics = programs.all_metrics

    async def __aenter__(self) -> "HostClient":
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the connections. What is under way raises Unavailable; nothing at the server ends by it, but commands
        that were not detached."""
        await self._pool.aclose()

    # ---- sessions ----------------------------------------------------------------------------------------------------

    async def create(self, spec: SessionSpec) -> SessionInfo:
        return await self._ask.value("CreateSession", spec)

    async def get(self, session_id: str) -> SessionInfo:
        return await self._ask.named("GetSession", session_id=session_id)

    async def list(self, query: SessionFilter) -> SessionPage:
        return await self._ask.value("ListSessions", query)

    async def pause(self, request: PauseRequest) -> SessionInfo:
        return await self._ask.value("PauseSession", request)

    async def resume(self, session_id: str) -> SessionInfo:
        return await self._ask.named("ResumeSession", session_id=session_id)

    async def extend(self, session_id: str, timeout_s: float) -> SessionInfo:
        return await self._ask.named("ExtendSession", session_id=session_id, timeout_s=timeout_s)

    async def relabel(self, request: RelabelRequest) -> SessionInfo:
        return await self._ask.value("RelabelSession", request)

    async def destroy(self, session_id: str) -> None:
        return await self._ask.named("DestroySession", session_id=session_id)

    # ---- calls -------------------------------------------------------------------------------------------------------

    async def calls(self, session_id: str) -> Sequence[CallRecord]:
        return await self._ask.named("ListCalls", session_id=session_id)

    @asynccontextmanager
    async def call(self, request: CallRequest) -> AsyncGenerator[RemoteCall]:
        call_id = request.call_id or new_call_id()
        stream = RemoteCall(self._link, request.session_id, call_id, request)
        await stream.enter()
        try:
            yield stream
        finally:
            await stream.leave()

    @asynccontextmanager
    async def attach(self, session_id: str, call_id: str) -> AsyncGenerator[RemoteCall]:
        stream = RemoteCall(self._link, session_id, call_id, None)
        await stream.enter()
        try:
            yield stream
        finally:
            await stream.leave()

    # ---- tools -------------------------------------------------------------------------------------------------------

    async def tools(self) -> Sequence[Tool]:
        return await self._ask.named("ListTools")

    async def cancel_tool(self, session_id: str, call_id: str) -> bool:
        return await self._ask.named("CancelTool", session_id=session_id, call_id=call_id)

    @asynccontextmanager
    async def execute_tool(self, request: ToolRequest) -> AsyncGenerator[RemoteTool]:
        call_id = request.call_id or new_call_id()
        stream = RemoteTool(self._link, replace(request, call_id=call_id), call_id)
        await stream.enter()
        try:
            yield stream
        finally:
            await stream.leave()

    # ---- snapshots ---------------------------------------------------------------------------------------------------

    async def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        return await self._ask.value("CreateSnapshot", request)

    async def list_snapshots(self, session_id: str) -> Sequence[Snapshot]:
        return await self._ask.named("ListSnapshots", session_id=session_id)

    async def delete_snapshot(self, session_id: str, name: str) -> None:
        return await self._ask.named("DeleteSnapshot", session_id=session_id, name=name)

    async def turn_complete(self, request: TurnRequest) -> Turn:
        return await self._ask.value("TurnComplete", request)

    async def turns(self, session_id: str) -> Sequence[Turn]:
        return await self._ask.named("ListTurns", session_id=session_id)

    async def rollback(self, request: RollbackRequest) -> SessionInfo:
        return await self._ask.value("RollbackSession", request)

    async def fork(self, request: ForkRequest) -> Sequence[SessionInfo]:
        return await self._ask.value("ForkSession", request)

    @asynccontextmanager
    async def diff(self, request: DiffRequest) -> AsyncGenerator[AsyncIterator[Sequence[Change]]]:
        async with self._ask.stream("Diff", to_message(request)) as (_, incoming):
            yield batches(incoming, "changes")

    # ---- moving ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def move(self, request: MoveRequest) -> AsyncGenerator[AsyncIterator[MoveProgress]]:
        async with self._ask.stream("MoveSession", to_message(request), repeatable=False) as (_, incoming):
            told = _each(incoming, "progress")
            yield told
            async for _ in told:
                pass  # it goes on to its end, unless it is left with an error

    @asynccontextmanager
    async def export(self, request: ExportRequest) -> AsyncGenerator[RemoteExport]:
        async with self._ask.stream("ExportSession", to_message(request)) as (first, incoming):
            assert isinstance(first, moving_pb.ExportContent)
            yield RemoteExport(first.expected_bytes, incoming)

    async def import_session(self, request: ImportRequest, content: AsyncIterable[bytes]) -> SessionInfo:
        return await upload(self._ask, "ImportSession", request, content)

    # ---- upkeep ------------------------------------------------------------------------------------------------------

    async def health(self) -> Health:
        return await self._ask.named("HealthCheck")

    async def examine(self, *, repair: bool = False) -> Examination:
        return await self._ask.named("ExamineHost", repair=repair)

    @asynccontextmanager
    async def backup(self) -> AsyncGenerator[RemoteExport]:
        async with self._ask.stream("BackupHost", common_pb.Nothing()) as (first, incoming):
            assert isinstance(first, moving_pb.ExportContent)
            yield RemoteExport(first.expected_bytes, incoming)

    async def cordon(self, request: CordonRequest) -> Health:
        return await self._ask.value("CordonHost", request)

    async def uncordon(self) -> Health:
        return await self._ask.named("UncordonHost")

    async def recover(self, session_id: str) -> SessionInfo:
        return await self._ask.named("RecoverSession", session_id=session_id)

    # ---- host --------------------------------------------------------------------------------------------------------

    async def capabilities(self) -> frozenset[Capability]:
        return await self._ask.named("GetCapabilities")

    # ---- templates ---------------------------------------------------------------------------------------------------

    async def list_templates(self) -> Sequence[TemplateInfo]:
        return await self._ask.named("ListTemplates")

    async def get_template(self, name: str) -> TemplateInfo:
        return await self._ask.named("GetTemplate", name=name)

    async def tag_template(self, name: str, new_name: str) -> TemplateInfo:
        return await self._ask.named("TagTemplate", name=name, new_name=new_name)

    async def remove_template(self, name: str) -> TemplateInfo:
        return await self._ask.named("RemoveTemplate", name=name)

    async def warm_template(self, name: str, count: int) -> TemplateInfo:
        return await self._ask.named("WarmTemplate", name=name, count=count)

    async def prune_templates(self, budget_bytes: int) -> Sequence[TemplateInfo]:
        return await self._ask.named("PruneTemplates", budget_bytes=budget_bytes)

    @asynccontextmanager
    async def make_template(self, request: TemplateRequest) -> AsyncGenerator[AsyncIterator[TemplateEvent]]:
        message = to_choice(templates_pb.TemplateMaking, request)
        async with self._ask.stream("MakeTemplate", message, repeatable=False) as (_, incoming):
            yield _chosen(incoming)

    # ---- lockers -----------------------------------------------------------------------------------------------------

    async def create_volume(self, spec: VolumeSpec) -> VolumeInfo:
        return await self._ask.value("CreateVolume", spec)

    async def get_volume(self, name: str) -> VolumeInfo:
        return await self._ask.named("GetVolume", name=name)

    async def list_volumes(self) -> Sequence[VolumeInfo]:
        return await self._ask.named("ListVolumes")

    async def remove_volume(self, name: str) -> None:
        return await self._ask.named("RemoveVolume", name=name)

    # ---- events ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def events(self, request: EventFilter) -> AsyncGenerator[AsyncIterator[Event]]:
        async with self._ask.resumed("StreamEvents", request, "after") as stream:

            async def told() -> AsyncGenerator[Event]:
                async for event in _each(stream.messages, "event"):
                    stream.reached(event.offset)
                    yield event

            yield told()


async def _each(incoming: AsyncIterator[AnyMessage], field: str) -> AsyncGenerator[Any]:
    async for message in incoming:
        found: AnyMessage | None = getattr(message, field)
        if found is not None:
            yield from_message(found)


async def _chosen(incoming: AsyncIterator[AnyMessage]) -> AsyncGenerator[TemplateEvent]:
    async for message in incoming:
        yield from_choice(message)
