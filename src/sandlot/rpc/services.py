"""Every procedure as a function of messages, whatever protocol asks for it."""

import importlib.metadata
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from sandlot.contracts import CallStream, Host
from sandlot.model import InvalidArgument, LimitReached, SandlotError, limits
from sandlot.rpc.convert import from_message, from_text, is_value, to_message
from sandlot.rpc.gen.sandlot.v1 import calls_pb, code_pb, common_pb, files_pb, host_pb, tools_pb
from sandlot.rpc.held import Held
from sandlot.rpc.messages import PROCEDURES, AnyMessage
from sandlot.rpc.streams import Stream, Streams, needed, verb
from sandlot.rpc.verbs import VERBS, pack_answer, unpack_arguments

Unary = Callable[[Any], Awaitable[AnyMessage]]
Upload = Callable[[AsyncIterator[Any]], Awaitable[AnyMessage]]

API_VERSION = 1
API_VERSION_MIN = 1  # the oldest that is understood
_log = logging.getLogger("sandlot.rpc")
_NOTHING = common_pb.Nothing()


class Services:
    def __init__(self, host: Host) -> None:
        self._host = host
        self.held = Held()
        streams = Streams(host, self.held)
        self.streams: Mapping[str, Stream] = streams.all
        self.unary: Mapping[str, Unary] = {
            **{name: self._unary(name, behind) for name, behind in VERBS.items()},
            "WaitCall": self.wait_call,
            "CancelCall": self.cancel_call,
            "WriteStdin": self.write_stdin,
            "CloseStdin": self.close_stdin,
            "SignalCall": self.signal_call,
            "ResizeCall": self.resize_call,
            "ExecuteTool": self.execute_tool,
            "LeaveTool": self.leave_tool,
            "LeaveCode": self.leave_code,
            "WritePort": streams.ports.write,
            "GetFile": self.get_file,
            "PutFile": self.put_file,
            "GetVersion": self.version,
        }
        self.uploads: Mapping[str, Upload] = {
            "WriteFile": partial(self._upload, "write_file"),
            "AppendFile": partial(self._upload, "append_file"),
            "UploadTree": partial(self._upload, "upload_tree"),
            "ImportSession": partial(self._upload, "import_session"),
        }

    def _unary(self, name: str, behind: str) -> Unary:
        procedure = PROCEDURES[name]
        response, takes_value = procedure.response, is_value(procedure.request)

        async def answer(asked: AnyMessage) -> AnyMessage:
            do = verb(self._host, behind)
            if takes_value:
                return pack_answer(response, await do(from_message(asked)))
            return pack_answer(response, await do(**unpack_arguments(asked)))

        return answer

    async def _upload(self, behind: str, messages: AsyncIterator[Any]) -> AnyMessage:
        first: Any = await anext(messages, None)
        if first is None:
            raise InvalidArgument("a stream of content begins with its request")
        request = from_message(needed(first, "request"))

        async def content() -> AsyncIterator[bytes]:
            if first.data:
                yield first.data
            async for message in messages:
                if message.request is not None:
                    raise InvalidArgument("only the first message of a stream of content has a request")
                if message.data:
                    yield message.data

        return to_message(await verb(self._host, behind)(request, content()))

    # ---- calls -------------------------------------------------------------------------------------------------

    def _attach(self, asked: Any) -> Any:
        return self._host.attach(from_text(asked.session_id), from_text(asked.call_id))

    async def wait_call(self, asked: calls_pb.CallRef) -> AnyMessage:
        async with self._attach(asked) as stream:
            return to_message(await stream.result())

    async def cancel_call(self, asked: calls_pb.CallRef) -> AnyMessage:
        session_id, call_id = from_text(asked.session_id), from_text(asked.call_id)
        if not await self.held.cancel(("call", session_id, call_id)):
            # It was begun at a server that has ended since, or has ended by itself.
            stream: CallStream
            async with self._attach(asked) as stream:
                await stream.signal(signal.SIGKILL)
                with suppress(SandlotError):
                    await stream.result()
        return _NOTHING

    async def write_stdin(self, asked: calls_pb.CallInput) -> AnyMessage:
        async with self._attach(asked) as stream:
            await stream.write_stdin(asked.data)
        return _NOTHING

    async def close_stdin(self, asked: calls_pb.CallRef) -> AnyMessage:
        async with self._attach(asked) as stream:
            await stream.close_stdin()
        return _NOTHING

    async def signal_call(self, asked: calls_pb.CallSignal) -> AnyMessage:
        async with self._attach(asked) as stream:
            await stream.signal(asked.number)
        return _NOTHING

    async def resize_call(self, asked: calls_pb.CallResize) -> AnyMessage:
        async with self._attach(asked) as stream:
            await stream.resize(asked.rows, asked.columns)
        return _NOTHING

    async def execute_tool(self, asked: tools_pb.ToolRequest) -> AnyMessage:
        async with self._host.execute_tool(from_message(asked)) as stream:
            return to_message(await stream.result())

    async def leave_tool(self, asked: calls_pb.CallRef) -> AnyMessage:
        await self.held.cancel(("tool", from_text(asked.session_id), from_text(asked.call_id)))
        return _NOTHING

    async def leave_code(self, asked: code_pb.CodeRef) -> AnyMessage:
        await self.held.cancel(("code", from_text(asked.session_id), from_text(asked.execution_id)))
        return _NOTHING

    # ---- files, the host ---------------------------------------------------------------------------------------

    async def get_file(self, asked: files_pb.FileRead) -> AnyMessage:
        request, content = from_message(asked), bytearray()
        async with self._host.read_file(request) as stream:
            async for piece in stream:
                content += piece
                if len(content) > limits.MESSAGE_BYTES_MAX:
                    raise LimitReached(
                        f"{request.path} has more than {limits.MESSAGE_BYTES_MAX} bytes",
                        next_step="read it as a stream, with ReadFile, or a part of it",
                        limit="message_bytes",
                    )
            info = to_message(stream.info)
            assert isinstance(info, files_pb.FileInfo)
            return files_pb.FileContent(info=info, data=bytes(content))

    async def put_file(self, asked: files_pb.FileWriting) -> AnyMessage:
        async def content() -> AsyncIterator[bytes]:
            if asked.data:
                yield asked.data

        return to_message(await self._host.write_file(from_message(needed(asked, "request")), content()))

    async def version(self, asked: common_pb.Nothing) -> AnyMessage:
        del asked
        program = importlib.metadata.version("sandlot")
        return host_pb.Version(version=program, api=API_VERSION, api_min=API_VERSION_MIN)


def unforeseen(name: str, error: BaseException) -> SandlotError:
    """A defect of ours: the log has it, the caller is told that it is none of his."""
    _log.error("%s failed", name, exc_info=error)
    return SandlotError("the server has a defect", next_step="report it with what its log says")
