"""Streams of a host that is elsewhere, as callers see them. Each goes on where it was when its connection is cut."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from sandlot.model import (
    CallEvent,
    CallOutput,
    CallRequest,
    CallResult,
    CallStarted,
    CodeEvent,
    CodeRequest,
    CodeResult,
    FileInfo,
    Line,
    SandlotError,
    SearchTally,
    Stream,
    Terminal,
    TerminalAttach,
    TerminalEnded,
    TerminalEvent,
    TerminalOutput,
    ToolEvent,
    ToolRequest,
    ToolResult,
    TreeTally,
    limits,
)
from sandlot.rpc.convert import build, from_choice, from_message, to_message, to_text
from sandlot.rpc.gen.sandlot.v1 import calls_pb, code_pb, terminals_pb, tools_pb
from sandlot.rpc.link import Incoming, Link, follow
from sandlot.rpc.messages import AnyMessage
from sandlot.rpc.transport import Cut

_T = TypeVar("_T")


_KEPT_BYTES = 64 * limits.KIB


def _size(message: Any) -> int:
    """About what a message of a call takes."""
    chosen = message.message
    return 64 + (len(chosen.value.data) if chosen is not None and chosen.field == "output" else 0)


def cut_off(name: str, last: str) -> SandlotError:
    return SandlotError(f"{name} ended before {last}", next_step="report it")


class RemoteCall:
    """A call: the stream that began it, or one that reads it."""

    def __init__(self, link: Link, session_id: str, call_id: str, request: CallRequest | None) -> None:
        self._link = link
        self._session_id = session_id
        self.call_id = call_id
        self._is_ours = request is not None and not request.detach
        self._start: calls_pb.CallStart | None = None  # otherwise it is only read
        if request is not None:
            message = to_message(request)
            assert isinstance(message, calls_pb.CallRequest)
            message.call_id = to_text(call_id)
            self._start = calls_pb.CallStart(request=message, linger_s=limits.LINGER_S)
        self._result: CallResult | None = None
        self._first: Incoming | None = None  # until someone reads it
        self._kept: list[Any] = []  # what `result` read of it, for whoever reads it then
        self._readers: list[AsyncGenerator[CallEvent]] = []

    async def enter(self) -> None:
        if self._start is not None:
            self._first, _ = await self._link.begin("Call", self._start)
        else:
            self._first, _ = await self._link.begin("AttachCall", self._place({}))

    async def leave(self) -> None:
        for reader in self._readers:
            await reader.aclose()
        try:
            if self._is_ours and self._result is None:
                await self._link.ask("CancelCall", self._ref())
        except SandlotError:
            pass  # it is over: the session, or the call, or the server
        finally:
            if self._first is not None:
                self._first.close()

    def _ref(self) -> calls_pb.CallRef:
        return calls_pb.CallRef(session_id=to_text(self._session_id), call_id=to_text(self.call_id))

    def _place(self, seen: dict[Stream, int]) -> calls_pb.CallAttach:
        return calls_pb.CallAttach(
            session_id=to_text(self._session_id),
            call_id=to_text(self.call_id),
            stdout_from=seen.get(Stream.STDOUT, 0),
            stderr_from=seen.get(Stream.STDERR, 0),
        )

    def _again(self, seen: dict[Stream, int]) -> AnyMessage:
        if self._start is None:
            return self._place(seen)
        return calls_pb.CallStart(
            request=self._start.request,
            linger_s=limits.LINGER_S,
            stdout_from=seen.get(Stream.STDOUT, 0),
            stderr_from=seen.get(Stream.STDERR, 0),
            again=True,
        )

    def __aiter__(self) -> AsyncIterator[CallEvent]:
        reader = self._read()
        self._readers.append(reader)
        return reader

    async def _read(self) -> AsyncGenerator[CallEvent]:
        seen: dict[Stream, int] = {}
        incoming, self._first, kept, self._kept = self._first, None, self._kept, []
        name = "Call" if self._start is not None else "AttachCall"
        if incoming is None:
            name, kept = "AttachCall", []
            incoming, _ = await self._link.begin(name, self._place(seen))
        again = (lambda: self._place(seen)) if name == "AttachCall" else (lambda: self._again(seen))
        was_started = False
        async for message in follow(self._link, name, incoming, again, kept):
            assert isinstance(message, calls_pb.CallMessage)
            if message.message is None or message.message.field == "opened":
                continue
            event: CallEvent = from_choice(message)
            if isinstance(event, CallOutput):
                seen[event.stream] = event.offset + len(event.data)
            elif isinstance(event, CallStarted):
                if was_started:
                    continue
                was_started = True
            else:
                self._result = event
            yield event
        if self._result is None:
            raise cut_off(f"call {self.call_id}", "its result")

    async def result(self) -> CallResult:
        result = self._result or await self._short_result()
        if result is None:
            result = self._result = from_message(await self._link.ask("WaitCall", self._ref()))
        return result

    async def _short_result(self) -> CallResult | None:
        """From the stream that is there, if nobody reads it and what comes before the result is little."""
        incoming, self._first = self._first, None
        if incoming is None:
            return None
        size = sum(_size(message) for message in self._kept)
        try:
            while size < _KEPT_BYTES:
                message: Any = await incoming.next()
                if message is None:
                    break
                self._kept.append(message)
                size += _size(message)
                if message.message.field == "result":
                    self._result = from_choice(message)
                    await incoming.next()  # its end: the connection is free for others
                    break
        except Cut:
            pass  # whoever reads on finds out where it was
        finally:
            self._first = incoming
        return self._result

    async def write_stdin(self, data: bytes) -> None:
        for at in range(0, len(data), limits.PIECE_BYTES):
            piece = data[at : at + limits.PIECE_BYTES]
            ref = {"session_id": to_text(self._session_id), "call_id": to_text(self.call_id)}
            await self._link.ask("WriteStdin", calls_pb.CallInput(**ref, data=piece))

    async def close_stdin(self) -> None:
        await self._link.ask("CloseStdin", self._ref())

    async def signal(self, number: int) -> None:
        await self._link.ask("SignalCall", self._built(calls_pb.CallSignal, number=number))

    async def resize(self, rows: int, columns: int) -> None:
        await self._link.ask("ResizeCall", self._built(calls_pb.CallResize, rows=rows, columns=columns))

    def _built(self, kind: type[AnyMessage], **more: int) -> AnyMessage:
        return build(kind, {"session_id": to_text(self._session_id), "call_id": to_text(self.call_id), **more})


class RemoteTool:
    def __init__(self, link: Link, request: ToolRequest, call_id: str) -> None:
        self._link = link
        self._request = request
        self.call_id = call_id
        self._result: ToolResult | None = None
        self._first: Incoming | None = None

    def _start(self, *, again: bool) -> tools_pb.ToolStart:
        message = to_message(self._request)
        assert isinstance(message, tools_pb.ToolRequest)
        return tools_pb.ToolStart(request=message, linger_s=limits.LINGER_S, again=again)

    async def enter(self) -> None:
        self._first, _ = await self._link.begin("ExecuteToolStream", self._start(again=False))

    async def leave(self) -> None:
        try:
            if self._result is None:
                session_id, call_id = to_text(self._request.session_id), to_text(self.call_id)
                await self._link.ask("LeaveTool", calls_pb.CallRef(session_id=session_id, call_id=call_id))
        except SandlotError:
            pass  # it is over: the session, or the server
        finally:
            if self._first is not None:
                self._first.close()

    async def __aiter__(self) -> AsyncGenerator[ToolEvent]:
        incoming, self._first = self._first, None
        name = "ExecuteToolStream"
        if incoming is None:
            incoming, _ = await self._link.begin(name, self._start(again=True))
        async for message in follow(self._link, name, incoming, lambda: self._start(again=True)):
            assert isinstance(message, tools_pb.ToolMessage)
            if message.message is None or message.message.field == "opened":
                continue
            event: ToolEvent = from_choice(message)
            if isinstance(event, ToolResult):
                self._result = event
            yield event
        if self._result is None:
            raise cut_off(f"call {self.call_id} of {self._request.tool}", "its result")

    async def result(self) -> ToolResult:
        if self._result is None:
            async for event in self:
                if isinstance(event, ToolResult):
                    self._result = event
        assert self._result is not None, "a stream of a tool ends with its result, or raises"
        return self._result


class RemoteCode:
    """A run of code. `request` is None where it is only read."""

    def __init__(self, link: Link, session_id: str, execution_id: str, request: CodeRequest | None) -> None:
        self._link = link
        self._session_id = session_id
        self.execution_id = execution_id
        self._request = request
        self._result: CodeResult | None = None
        self._first: Incoming | None = None

    def _ref(self, skip: int = 0) -> code_pb.CodeRef:
        ids = to_text(self._session_id), to_text(self.execution_id)
        return code_pb.CodeRef(session_id=ids[0], execution_id=ids[1], skip=skip)

    def _start(self, skip: int, *, again: bool) -> AnyMessage:
        if self._request is None:
            return self._ref(skip)
        message = to_message(self._request)
        assert isinstance(message, code_pb.CodeRequest)
        return code_pb.CodeStart(request=message, linger_s=limits.LINGER_S, again=again, skip=skip)

    async def enter(self) -> None:
        name = "AttachCode" if self._request is None else "RunCode"
        self._first, _ = await self._link.begin(name, self._start(0, again=False))

    async def leave(self) -> None:
        is_ours = self._request is not None and not self._request.detach
        try:
            if is_ours and self._result is None:
                await self._link.ask("LeaveCode", self._ref())
        except SandlotError:
            pass  # it is over: the session, or the server
        finally:
            if self._first is not None:
                self._first.close()

    async def __aiter__(self) -> AsyncGenerator[CodeEvent]:
        incoming, self._first = self._first, None
        name = "AttachCode" if self._request is None else "RunCode"
        seen = 0
        if incoming is None:
            name = "AttachCode"
            incoming, _ = await self._link.begin(name, self._ref())
        is_read_only = name == "AttachCode"
        again: Callable[[], AnyMessage] = lambda: self._ref(seen) if is_read_only else self._start(seen, again=True)  # noqa: E731
        async for message in follow(self._link, name, incoming, again):
            assert isinstance(message, code_pb.CodeMessage)
            if message.message is None or message.message.field == "opened":
                continue
            event: CodeEvent = from_choice(message)
            seen += 1
            if isinstance(event, CodeResult):
                self._result = event
            yield event
        if self._result is None:
            raise cut_off(f"run {self.execution_id}", "its result")

    async def result(self) -> CodeResult:
        if self._result is None:
            async for event in self:
                if isinstance(event, CodeResult):
                    self._result = event
        assert self._result is not None, "a stream of code ends with its result, or raises"
        return self._result


class RemoteTerminal:
    def __init__(self, link: Link, request: TerminalAttach) -> None:
        self._link = link
        self._request = request
        self._first: Incoming | None = None
        self._opened: terminals_pb.TerminalOpened | None = None

    async def enter(self) -> None:
        self._first, message = await self._link.begin("AttachTerminal", to_message(self._request))
        assert isinstance(message, terminals_pb.TerminalMessage)
        if message.message is None or not isinstance(message.message.value, terminals_pb.TerminalOpened):
            raise cut_off("the terminal", "it told how it is")
        self._opened = message.message.value

    def leave(self) -> None:
        if self._first is not None:
            self._first.close()

    @property
    def client_id(self) -> str:
        assert self._opened is not None, "it is given out when it was entered"
        return self._opened.client_id

    @property
    def terminal(self) -> Terminal:
        assert self._opened is not None, "it is given out when it was entered"
        assert self._opened.terminal is not None, "a server tells how a terminal is"
        return from_message(self._opened.terminal)

    async def __aiter__(self) -> AsyncGenerator[TerminalEvent]:
        incoming, self._first = self._first, None
        at = self._request.offset

        def again() -> AnyMessage:
            return to_message(replace(self._request, offset=at, client_id=self.client_id))

        if incoming is None:
            incoming, _ = await self._link.begin("AttachTerminal", again())
        async for message in follow(self._link, "AttachTerminal", incoming, again):
            assert isinstance(message, terminals_pb.TerminalMessage)
            if message.message is None or message.message.field == "opened":
                continue
            event: TerminalEvent = from_choice(message)
            if isinstance(event, TerminalOutput):
                at = event.offset + len(event.data)
            yield event
            if isinstance(event, TerminalEnded):
                return


class RemoteBatches(Generic[_T]):
    """What a search finds."""

    def __init__(self, incoming: AsyncIterator[AnyMessage], field: str) -> None:
        self._incoming = incoming
        self._field = field
        self.tally = SearchTally()

    async def __aiter__(self) -> AsyncGenerator[Sequence[_T]]:
        async for message in self._incoming:
            told: Any = message
            if told.tally is not None:
                self.tally = from_message(told.tally)
            found = [from_message(one) for one in getattr(told, self._field)]
            if found:
                yield found


class RemoteFile:
    def __init__(self, info: FileInfo, incoming: AsyncIterator[AnyMessage]) -> None:
        self.info = info
        self._incoming = incoming

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        async for message in self._incoming:
            told: Any = message
            if told.data:
                yield told.data


class RemoteLines:
    def __init__(self, info: FileInfo, incoming: AsyncIterator[AnyMessage]) -> None:
        self.info = info
        self.total: int | None = None
        self._incoming = incoming

    async def __aiter__(self) -> AsyncGenerator[Sequence[Line]]:
        async for message in self._incoming:
            told: Any = message
            if told.has_field("total"):
                self.total = told.total
            if told.lines:
                yield [from_message(line) for line in told.lines]


class RemoteTree:
    def __init__(self, incoming: AsyncIterator[AnyMessage]) -> None:
        self._incoming = incoming
        self.tally = TreeTally()

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        async for message in self._incoming:
            told: Any = message
            if told.tally is not None:
                self.tally = from_message(told.tally)
            if told.data:
                yield told.data


class RemoteExport:
    def __init__(self, expected_bytes: int, incoming: AsyncIterator[AnyMessage]) -> None:
        self.expected_bytes = expected_bytes
        self._incoming = incoming

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        async for message in self._incoming:
            told: Any = message
            if told.data:
                yield told.data
