"""The procedures that answer with a stream, each as one generator. The first message says that the verb was entered:
whoever hears it knows that nothing was refused."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from protobuf import Oneof

from sandlot.contracts import CallStream, Host
from sandlot.contracts.host import ExportStream
from sandlot.model import (
    CallEvent,
    CallOutput,
    CallResult,
    CapabilityNotSupported,
    CodeResult,
    InvalidArgument,
    SandlotError,
    ToolResult,
    limits,
)
from sandlot.rpc.convert import from_choice, from_message, from_text, to_choice, to_message
from sandlot.rpc.gen.sandlot.v1 import (
    calls_pb,
    code_pb,
    common_pb,
    events_pb,
    files_pb,
    moving_pb,
    processes_pb,
    snapshots_pb,
    templates_pb,
    terminals_pb,
    tools_pb,
)
from sandlot.rpc.held import Held
from sandlot.rpc.messages import AnyMessage
from sandlot.rpc.ports import ServedPorts

Stream = Callable[[Any], AsyncGenerator[AnyMessage]]
_T = TypeVar("_T")
_ENTRIES = 1000  # of one batch


def pieces(data: bytes) -> list[bytes]:
    """No larger than one message may be."""
    if len(data) <= limits.PIECE_BYTES:
        return [data]
    return [data[at : at + limits.PIECE_BYTES] for at in range(0, len(data), limits.PIECE_BYTES)]


async def batches(found: AsyncIterator[Sequence[_T]]) -> AsyncIterator[list[AnyMessage]]:
    async for batch in found:
        for at in range(0, len(batch), _ENTRIES):
            yield [to_message(one) for one in batch[at : at + _ENTRIES]]


def unknown(stream: CallStream, stdout_from: int, stderr_from: int) -> AsyncIterator[CallEvent]:
    """Without the output that is known already."""
    known = {"stdout": stdout_from, "stderr": stderr_from}
    if not stdout_from and not stderr_from:
        return aiter(stream)
    return _behind(stream, known)


async def _behind(stream: CallStream, known: Mapping[str, int]) -> AsyncIterator[CallEvent]:
    async for event in stream:
        if isinstance(event, CallOutput) and event.offset < (skip := known[event.stream]):
            if event.offset + len(event.data) > skip:
                yield CallOutput(event.stream, skip, event.data[skip - event.offset :])
        else:
            yield event


class Streams:
    def __init__(self, host: Host, held: Held) -> None:
        self._host = host
        self._held = held
        self.ports = ServedPorts(host)
        self.all: Mapping[str, Stream] = {
            "Call": self.call,
            "AttachCall": self.attach,
            "ExecuteToolStream": self.execute_tool,
            "ReadFile": self.read_file,
            "ReadLines": self.read_lines,
            "ListFiles": partial(self._batches, host.list_files, files_pb.FileBatch, "files"),
            "FindFiles": partial(self._found, host.find_files, files_pb.FoundBatch, "files"),
            "SearchFiles": partial(self._found, host.search_files, files_pb.MatchBatch, "matches"),
            "WatchFiles": partial(self._batches, host.watch_files, files_pb.FileEventBatch, "events"),
            "DownloadTree": self.download_tree,
            "Diff": partial(self._batches, host.diff, snapshots_pb.ChangeBatch, "changes"),
            "MoveSession": self.move,
            "ExportSession": self.export,
            "BackupHost": self.backup,
            "MakeTemplate": self.make_template,
            "StreamEvents": self.events,
            "StreamProcessLogs": self.process_logs,
            "ConnectPort": self.ports.connect,
            "AttachTerminal": self.attach_terminal,
            "RunCode": self.run_code,
            "AttachCode": self.attach_code,
        }

    # ---- calls, tools, code ------------------------------------------------------------------------------------

    async def call(self, start: calls_pb.CallStart) -> AsyncGenerator[AnyMessage]:
        request = from_message(needed(start, "request"))
        key = ("call", request.session_id, request.call_id) if request.call_id is not None else None
        entry = await self._held.enter(key, start.again, lambda: self._host.call(request))
        is_over = False
        try:
            yield _opened(entry.stream.call_id)
            async for event in unknown(entry.stream, start.stdout_from, start.stderr_from):
                is_over = isinstance(event, CallResult)
                yield to_choice(calls_pb.CallMessage, event)
        except SandlotError:
            is_over = True
            raise
        finally:
            await self._held.leave(entry, linger(start.linger_s), is_over)

    async def attach(self, asked: calls_pb.CallAttach) -> AsyncGenerator[AnyMessage]:
        async with self._host.attach(from_text(asked.session_id), from_text(asked.call_id)) as stream:
            yield _opened(stream.call_id)
            async for event in unknown(stream, asked.stdout_from, asked.stderr_from):
                yield to_choice(calls_pb.CallMessage, event)

    async def execute_tool(self, start: tools_pb.ToolStart) -> AsyncGenerator[AnyMessage]:
        request = from_message(needed(start, "request"))
        key = ("tool", request.session_id, request.call_id) if request.call_id is not None else None
        entry = await self._held.enter(key, start.again, lambda: self._host.execute_tool(request))
        is_over = False
        try:
            opened = calls_pb.CallOpened(call_id=entry.stream.call_id)
            yield tools_pb.ToolMessage(message=Oneof("opened", opened))
            async for event in entry.stream:
                is_over = isinstance(event, ToolResult)
                yield to_choice(tools_pb.ToolMessage, event)
        except SandlotError:
            is_over = True
            raise
        finally:
            await self._held.leave(entry, linger(start.linger_s), is_over)

    async def run_code(self, start: code_pb.CodeStart) -> AsyncGenerator[AnyMessage]:
        request = from_message(needed(start, "request"))
        key = ("code", request.session_id, request.execution_id) if request.execution_id is not None else None
        entry = await self._held.enter(key, start.again, lambda: verb(self._host, "run_code")(request))
        is_over = False
        try:
            yield code_pb.CodeMessage(
                message=Oneof("opened", code_pb.CodeOpened(execution_id=entry.stream.execution_id))
            )
            async for event in _later(entry.stream, start.skip):
                is_over = isinstance(event, CodeResult)
                yield to_choice(code_pb.CodeMessage, event)
        except SandlotError:
            is_over = True
            raise
        finally:
            await self._held.leave(entry, linger(start.linger_s), is_over)

    async def attach_code(self, asked: code_pb.CodeRef) -> AsyncGenerator[AnyMessage]:
        attach = verb(self._host, "attach_code")
        async with attach(from_text(asked.session_id), from_text(asked.execution_id)) as stream:
            yield code_pb.CodeMessage(message=Oneof("opened", code_pb.CodeOpened(execution_id=stream.execution_id)))
            async for event in _later(stream, asked.skip):
                yield to_choice(code_pb.CodeMessage, event)

    # ---- files -------------------------------------------------------------------------------------------------

    async def read_file(self, asked: files_pb.FileRead) -> AsyncGenerator[AnyMessage]:
        async with self._host.read_file(from_message(asked)) as stream:
            yield files_pb.FileContent(info=_as(files_pb.FileInfo, stream.info))
            async for piece in stream:
                for part in pieces(piece):
                    yield files_pb.FileContent(data=part)

    async def read_lines(self, asked: files_pb.FileLines) -> AsyncGenerator[AnyMessage]:
        async with self._host.read_lines(from_message(asked)) as stream:
            yield files_pb.LineBatch(info=_as(files_pb.FileInfo, stream.info))
            async for lines in batches(aiter(stream)):
                yield files_pb.LineBatch(lines=[line for line in lines if isinstance(line, files_pb.Line)])
            yield files_pb.LineBatch(total=stream.total)

    async def download_tree(self, asked: files_pb.TreeDownload) -> AsyncGenerator[AnyMessage]:
        async with self._host.download_tree(from_message(asked)) as stream:
            yield files_pb.TreeContent()
            async for piece in stream:
                for part in pieces(piece):
                    yield files_pb.TreeContent(data=part)
            yield files_pb.TreeContent(tally=_as(files_pb.TreeTally, stream.tally))

    async def _batches(
        self, enter: Callable[[Any], Any], message: type[AnyMessage], field: str, asked: AnyMessage
    ) -> AsyncGenerator[AnyMessage]:
        async with enter(from_message(asked)) as found:
            yield message()
            async for batch in batches(found):
                yield message(**{field: batch})

    async def _found(
        self, enter: Callable[[Any], Any], message: type[AnyMessage], field: str, asked: AnyMessage
    ) -> AsyncGenerator[AnyMessage]:
        async with enter(from_message(asked)) as found:
            yield message()
            async for batch in batches(aiter(found)):
                yield message(**{field: batch})
            yield message(tally=to_message(found.tally))

    # ---- the rest ----------------------------------------------------------------------------------------------

    async def move(self, asked: moving_pb.MoveRequest) -> AsyncGenerator[AnyMessage]:
        async with self._host.move(from_message(asked)) as progress:
            yield moving_pb.MoveMessage()
            async for one in progress:
                yield moving_pb.MoveMessage(progress=_as(moving_pb.MoveProgress, one))

    async def export(self, asked: moving_pb.ExportRequest) -> AsyncGenerator[AnyMessage]:
        async with self._host.export(from_message(asked)) as stream:
            async for message in _content(stream):
                yield message

    async def backup(self, _asked: common_pb.Nothing) -> AsyncGenerator[AnyMessage]:
        async with self._host.backup() as stream:
            async for message in _content(stream):
                yield message

    async def make_template(self, asked: templates_pb.TemplateMaking) -> AsyncGenerator[AnyMessage]:
        async with self._host.make_template(from_choice(asked)) as told:
            yield templates_pb.TemplateMessage(message=Oneof("opened", common_pb.Nothing()))
            async for one in told:
                yield to_choice(templates_pb.TemplateMessage, one)

    async def events(self, asked: events_pb.EventFilter) -> AsyncGenerator[AnyMessage]:
        async with self._host.events(from_message(asked)) as told:
            yield events_pb.EventMessage()
            async for one in told:
                yield events_pb.EventMessage(event=_as(events_pb.Event, one))

    async def process_logs(self, asked: processes_pb.ProcessLogs) -> AsyncGenerator[AnyMessage]:
        async with verb(self._host, "process_logs")(from_message(asked)) as told:
            yield processes_pb.LogMessage()
            async for one in told:
                yield processes_pb.LogMessage(output=_as(processes_pb.ProcessOutput, one))

    async def attach_terminal(self, asked: terminals_pb.TerminalAttach) -> AsyncGenerator[AnyMessage]:
        async with verb(self._host, "attach_terminal")(from_message(asked)) as stream:
            opened = terminals_pb.TerminalOpened(
                client_id=stream.client_id, terminal=_as(terminals_pb.Terminal, stream.terminal)
            )
            yield terminals_pb.TerminalMessage(message=Oneof("opened", opened))
            async for event in stream:
                yield to_choice(terminals_pb.TerminalMessage, event)


def verb(host: Host, name: str) -> Callable[..., Any]:
    """Raises CapabilityNotSupported for a host that does not have it."""
    found = getattr(host, name, None)
    if found is None:
        raise CapabilityNotSupported(f"this server has no {name}", next_step="use a newer one")
    return found


def needed(message: AnyMessage, name: str) -> AnyMessage:
    found: AnyMessage | None = getattr(message, name)
    if found is None:
        raise InvalidArgument(f"{name} of {type(message).__name__} is missing")
    return found


def linger(wanted: float) -> float:
    limits.within("linger_s", wanted, 0.0, limits.LINGER_S_MAX)
    return wanted


def _opened(call_id: str) -> AnyMessage:
    return calls_pb.CallMessage(message=Oneof("opened", calls_pb.CallOpened(call_id=call_id)))


_M = TypeVar("_M", bound=AnyMessage)


def _as(kind: type[_M], value: object) -> _M:
    message = to_message(value)
    assert isinstance(message, kind)
    return message


async def _later(stream: Any, skip: int) -> AsyncIterator[Any]:
    at = 0
    async for event in stream:
        at += 1
        if at > skip:
            yield event


async def _content(stream: ExportStream) -> AsyncGenerator[AnyMessage]:
    yield moving_pb.ExportContent(expected_bytes=stream.expected_bytes)
    async for piece in stream:
        for part in pieces(piece):
            yield moving_pb.ExportContent(data=part)
